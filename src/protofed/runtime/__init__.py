"""The machine: files, processes, memory and progress; nothing here knows of learning."""
