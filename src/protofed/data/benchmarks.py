"""All benchmarks by name: how each is read, split into training and test, and partitioned."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import torch

from protofed.core.rng import rng
from protofed.core.site import ArrayDataset
from protofed.data import digits_mini, npz_store, transforms
from protofed.data.array_folder import array_info, is_array_folder
from protofed.data.benchmark_info import Benchmark, BenchmarkInfo, Domain
from protofed.data.folder_images import FolderInfo, folder_info, folder_label, one_client_per_domain
from protofed.data.npz_store import ArchiveInfo
from protofed.data.partition import DirichletPartition, EqualPartition, Partition, SharesPartition
from protofed.errors import ProtofedError, require_known_name

DIGIT_NAMES = tuple("0123456789")
CIFAR10_NAMES = "airplane automobile bird cat deer dog frog horse ship truck"
CIFAR100_NAMES = """
    apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus
    butterfly camel can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab
    crocodile cup dinosaur dolphin elephant flatfish forest fox girl hamster house kangaroo keyboard
    lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle mountain mouse mushroom
    oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine
    possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake
    spider squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor
    train trout tulip turtle wardrobe whale willow_tree wolf woman worm"""
OFFICE_NAMES = """
    backpack bike calculator headphones keyboard laptop_computer monitor mouse mug projector"""
OFFICE_HOME_NAMES = """
    Alarm_Clock Backpack Batteries Bed Bike Bottle Bucket Calculator Calendar Candles Chair
    Clipboards Computer Couch Curtains Desk_Lamp Drill Eraser Exit_Sign Fan File_Cabinet Flipflops
    Flowers Folder Fork Glasses Hammer Helmet Kettle Keyboard Knives Lamp_Shade Laptop Marker
    Monitor Mop Mouse Mug Notebook Oven Pan Paper_Clip Pen Pencil Postit_Notes Printer Push_Pin
    Radio Refrigerator Ruler Scissors Screwdriver Shelf Sink Sneakers Soda Speaker Spoon TV Table
    Telephone ToothBrush Toys Trash_Can Webcam"""
PACS_NAMES = "dog elephant giraffe guitar horse house person"
PATHMNIST_NAMES = (
    "adipose",
    "background",
    "debris",
    "lymphocytes",
    "mucus",
    "smooth muscle",
    "normal colon mucosa",
    "cancer-associated stroma",
    "colorectal adenocarcinoma epithelium",
)
VLCS_NAMES = "bird car chair dog person"
BLOODPBC_NAMES = "basophil eosinophil erythroblast ig lymphocyte monocyte neutrophil platelet"
WBC_NAMES = "basophil eosinophil lymphocyte monocyte neutrophil"

ASSEMBLED = "it has no single public download: docs/data.md tells how to put it together"
BLOODPBC = ArchiveInfo("bloodpbc", "bloodpbc", tuple(BLOODPBC_NAMES.split()), remedy=ASSEMBLED)
CIFAR10 = ArchiveInfo("cifar10", "cifar10", tuple(CIFAR10_NAMES.split()))
CIFAR100 = ArchiveInfo("cifar100", "cifar100", tuple(CIFAR100_NAMES.split()))
DIGITS = ArchiveInfo("digits", "digits", DIGIT_NAMES)
OFFICE = ArchiveInfo("office-caltech", "office_caltech10", tuple(OFFICE_NAMES.split()))
OFFICE_HOME = ArchiveInfo("office-home", "office_home", tuple(OFFICE_HOME_NAMES.split()))
PACS = ArchiveInfo("pacs", "pacs", tuple(PACS_NAMES.split()))
PATHMNIST = ArchiveInfo("pathmnist", "pathmnist", PATHMNIST_NAMES)
VLCS = ArchiveInfo("vlcs", "vlcs", tuple(VLCS_NAMES.split()))
WBC = ArchiveInfo("wbc", "wbc_multilab", tuple(WBC_NAMES.split()), remedy=ASSEMBLED)


def read_stored_split(source: ArchiveInfo, domain: str) -> Domain:
    """A domain whose file already has a training and a test part (``x_train`` and ``x_test``).

    Reads ``DOMAIN.npz`` below the benchmark's folder in PROTOFED_DATA.
    """
    file = f"{domain}.npz"
    train, test = npz_store.read_archive(source, file, ("train", "test"))
    return Domain(domain, train, test, npz_store.archive_note(source, file))


def read_digits_domain(domain: str) -> Domain:
    """A domain of the benchmark `digits`.

    ``syn`` is rendered here, as the images of the papers are not available; the others are read.
    """
    if domain == "syn":
        return digits_mini.synthetic_digits()
    return read_stored_split(DIGITS, domain)


def split_80_20_ordered(source: ArchiveInfo, domain: str) -> Domain:
    """A domain stored as one part: of every ten images, eight go to training and two to test.

    The images are taken in the stored order, which is by class and file name. So the split is the
    same in every run and nearly balanced over classes.
    """
    (everything,) = npz_store.read_archive(source, f"{domain}.npz", ("",))
    row = torch.arange(len(everything))
    return _split(domain, everything, test=row % 10 > 7)


def split_80_20_by_class(source: ArchiveInfo, domain: str) -> Domain:
    """As `split_80_20_ordered`, for images that are not stored by class: they are counted by class.

    So the classes have nearly the same shares in both parts; a class of eight images or fewer may
    have none to test.
    """
    (everything,) = npz_store.read_archive(source, f"{domain}.npz", ("",))
    place = torch.empty(len(everything), dtype=torch.long)
    place[everything.labels.argsort(stable=True)] = torch.arange(len(everything))
    return _split(domain, everything, test=place % 10 > 7)


def split_70_30_random(source: ArchiveInfo, domain: str) -> Domain:
    """A domain stored as one part, with a random 30 % (rounded up) as its test part.

    The random stream depends on the names of benchmark and domain only: the split does not change
    with the seed of an experiment.
    """
    file = "art_painting" if (source, domain) == (PACS, "art") else domain
    (everything,) = npz_store.read_archive(source, f"{file}.npz", ("",))
    total = len(everything)
    order = torch.randperm(total, generator=rng(source.benchmark, "split", domain))
    test = torch.zeros(total, dtype=torch.bool)
    test[order[: (3 * total + 9) // 10]] = True
    return _split(domain, everything, test)


def _split(domain: str, everything: ArrayDataset, test: torch.Tensor) -> Domain:
    """Cut by a mask [N]; both parts keep the stored order."""
    train_rows, test_rows = (mask.nonzero().squeeze(1) for mask in (~test, test))
    return Domain(domain, everything.take(train_rows), everything.take(test_rows))


def looks_like_folder(name: str) -> bool:
    """Whether the name of a data set means a folder of images or arrays rather than a benchmark.

    True for names with a slash or a leading ``.`` or ``~``, and for any existing folder. A
    benchmark's name always means the benchmark.
    """
    if name in BENCHMARKS:
        return False
    return "/" in name or os.sep in name or name.startswith((".", "~")) or Path(name).is_dir()


def benchmark_info(name: str, strict: bool = False) -> BenchmarkInfo:
    """The `BenchmarkInfo` of a benchmark, or of a folder of images or arrays; no image is read.

    `name` is a key of `BENCHMARKS` or a path (see `looks_like_folder`). With `strict`, a folder
    with unusable image files is refused later, when its images are read; otherwise these files are
    skipped.
    """
    if looks_like_folder(name):
        root = Path(name)
        return array_info(root) if is_array_folder(root) else folder_info(root, strict)
    try:
        return BENCHMARKS[require_known_name("benchmark", name, BENCHMARKS)]
    except ProtofedError as fault:
        raise ProtofedError(
            f"{fault}, or a folder of images: there is none called {name}"
        ) from None


def source_label(name: str) -> str:
    """A short name without slashes for a benchmark or folder, for headings and file names.

    ``source_label("/data/our photos")`` is ``"our-photos"``.
    """
    return folder_label(name) if looks_like_folder(name) else name


def default_partition(name: str, domains: tuple[str, ...]) -> Partition:
    """The default partition rule for the given domains.

    Works without access to a folder of images, so that specs of old runs can still be read.
    """
    if looks_like_folder(name):
        return one_client_per_domain(domains)
    return BENCHMARKS[name].default_partition(domains)


def default_net(name: str) -> str:
    """The name of the default net for a benchmark or folder.

    Like `default_partition`, it needs no access to a folder of images.
    """
    return FolderInfo.net if looks_like_folder(name) else BENCHMARKS[name].net


def load_benchmark(name: str, domains: tuple[str, ...] = (), side: int | None = None) -> Benchmark:
    """Read a benchmark, or a folder of images, into memory.

    `domains` are the default ones if empty, `side` the benchmark's own if None::

        load_benchmark("digits-mini", ("optical", "print")).domains[0].train.images.shape
        # torch.Size([1200, 32, 32, 1])
    """
    return benchmark_info(name).load(domains, side)


CIFAR100_MEAN, CIFAR100_STD = (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)

BENCHMARKS: dict[str, BenchmarkInfo] = {
    entry.name: entry
    for entry in (
        BenchmarkInfo(
            name="bloodpbc",
            summary="8 kinds of blood cells of one hospital, one domain, skewed labels",
            classes=BLOODPBC.classes,
            domains=("bloodpbc",),
            mean=(0.5, 0.5, 0.5),
            std=(0.5, 0.5, 0.5),
            net="moon-cnn",
            partition=DirichletPartition(clients=10, alpha=0.5),
            notes=("bloodpbc: a subset with a split of its own, not BloodMNIST's",),
            read=partial(read_stored_split, BLOODPBC),
        ),
        BenchmarkInfo(
            name="cifar10",
            summary="small photographs of 10 kinds of things, one domain, skewed labels",
            classes=CIFAR10.classes,
            domains=("cifar10",),
            mean=transforms.CIFAR_MEAN,
            std=transforms.CIFAR_STD,
            net="moon-cnn",
            partition=DirichletPartition(clients=10, alpha=0.5),
            notes=("cifar10: a subset, 8,000 of 50,000 to train and 2,000 of 10,000 to test",),
            read=partial(read_stored_split, CIFAR10),
        ),
        BenchmarkInfo(
            name="cifar100",
            summary="small photographs of 100 kinds of things, one domain, skewed labels",
            classes=CIFAR100.classes,
            domains=("cifar100",),
            mean=CIFAR100_MEAN,
            std=CIFAR100_STD,
            net="moon-resnet18",
            partition=DirichletPartition(clients=10, alpha=0.5),
            notes=(
                "cifar100: a subset, 2,000 images to train and 500 to test",
                "cifar100: the split is not the official one",
            ),
            read=partial(read_stored_split, CIFAR100),
        ),
        BenchmarkInfo(
            name="digits",
            summary="digits from post, street numbers and type: mnist, usps, svhn, syn",
            classes=DIGIT_NAMES,
            domains=("mnist", "usps", "svhn", "syn"),
            on_request=("mnistm",),
            revision=digits_mini.VERSION,
            flip=False,  # a mirrored 2 or 5 is no digit
            # Clients as in FedLSA. 1 % of the full training sets each, given as counts because
            # svhn and mnistm are stored as subsets.
            partition=SharesPartition(
                clients={"mnist": 1, "usps": 4, "svhn": 2, "syn": 3, "mnistm": 1},
                samples={"mnist": 600, "usps": 72, "svhn": 732, "syn": 229, "mnistm": 590},
            ),
            notes=(
                "svhn: a subset, 10,000 of 73,257 to train and 5,000 of 26,032 to test",
                "svhn: cropped again from the full-number images",
                "syn: re-made by protofed's renderer, not the images of the papers",
                "mnistm: a subset, 7,500 of 59,001 to train and 2,500 of 9,001 to test",
            ),
            read=read_digits_domain,
        ),
        BenchmarkInfo(
            name="digits-mini",
            summary="digits in four styles, rendered locally; needs no data",
            classes=DIGIT_NAMES,
            domains=digits_mini.DOMAINS,
            revision=digits_mini.VERSION,
            flip=False,
            net="moon-cnn",  # the quickest
            # Two of each domain: eight prototypes a class, enough for clusters to form (FPL).
            partition=EqualPartition(clients=dict.fromkeys(digits_mini.DOMAINS, 2)),
            needs_data=False,
            notes=("made by protofed for quick runs; no paper reports it",),
            read=digits_mini.digits_mini_domain,
        ),
        BenchmarkInfo(
            name="office-caltech",
            summary="10 kinds of things in shops, on the web, by webcam and by good camera",
            classes=OFFICE.classes,
            domains=("caltech", "amazon", "webcam", "dslr"),
            partition=SharesPartition(
                clients={"caltech": 3, "amazon": 2, "webcam": 1, "dslr": 4},
                share=0.2,
                repair=True,
            ),
            notes=("amazon: 10 of the 190 test images occur in the training part as well",),
            read=partial(split_80_20_ordered, OFFICE),
        ),
        BenchmarkInfo(
            name="office-home",
            summary="65 kinds of things in art, clipart, product pictures and photographs",
            classes=OFFICE_HOME.classes,
            domains=("art", "clipart", "product", "real"),
            side=64,
            net="resnet10",
            partition=EqualPartition(clients={"art": 1, "clipart": 1, "product": 1, "real": 1}),
            notes=("a random 70/30 split of protofed's own; none of the four papers uses it",),
            read=partial(split_70_30_random, OFFICE_HOME),
        ),
        BenchmarkInfo(
            name="pacs",
            summary="7 kinds of things as photo, art, cartoon and sketch",
            classes=PACS.classes,
            domains=("photo", "art", "cartoon", "sketch"),
            side=64,
            # Not 0.3: four cartoon clients would need 1.2 of their domain, as none of them overlap.
            partition=SharesPartition(
                clients={"photo": 2, "art": 3, "cartoon": 4, "sketch": 1}, share=0.2
            ),
            notes=("a random 70/30 split of protofed's own, not the official lists",),
            read=partial(split_70_30_random, PACS),
        ),
        BenchmarkInfo(
            name="pathmnist",
            summary="9 kinds of tissue under the microscope, one domain, skewed labels",
            classes=PATHMNIST.classes,
            domains=("pathmnist",),
            mean=(0.5, 0.5, 0.5),
            std=(0.5, 0.5, 0.5),
            net="moon-cnn",
            partition=DirichletPartition(clients=10, alpha=0.5),
            notes=("the validation part, 10,004 images, is used neither to train nor to test",),
            read=partial(read_stored_split, PATHMNIST),
        ),
        BenchmarkInfo(
            name="vlcs",
            summary="5 kinds of things in four collections of photographs",
            classes=VLCS.classes,
            domains=("caltech", "labelme", "pascal", "sun"),
            side=64,
            # FedSeProto states no clients; this is its choice for pacs, in the order of its table.
            partition=SharesPartition(
                clients={"caltech": 2, "labelme": 3, "pascal": 4, "sun": 1}, share=0.2
            ),
            notes=("of ten images in order of class and file, eight to train",),
            read=partial(split_80_20_ordered, VLCS),
        ),
        BenchmarkInfo(
            name="wbc",
            summary="5 kinds of white blood cells in four laboratories of very different size",
            classes=WBC.classes,
            domains=("barcelona", "tecom", "cellavision", "bccd"),
            partition=EqualPartition(
                clients={"barcelona": 1, "tecom": 1, "cellavision": 1, "bccd": 1}
            ),
            notes=(
                "put together from three public sets, not a published benchmark",
                "of ten images in order of class, eight to train",
                "tecom: some labels were not checked by experts",
                "cellavision: some labels were not checked by experts",
            ),
            read=partial(split_80_20_by_class, WBC),
        ),
    )
}
