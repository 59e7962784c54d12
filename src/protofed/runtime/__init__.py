"""The machine: files, processes, memory and progress; nothing here knows about learning."""
