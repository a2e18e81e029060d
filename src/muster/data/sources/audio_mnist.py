"""AudioMNIST (Becker et al. 2018): sixty people say the ten digits, fifty times each."""

from __future__ import annotations

import re
import wave
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from scipy.signal import resample_poly, stft

from muster.core.arrays import Floats
from muster.core.errors import ConfigError, DataError
from muster.data.cache import Arrays, NewArray
from muster.data.federated import Dataset, Normalisation
from muster.data.locate import DataFiles, FileLayout
from muster.data.sources._build import held_out, labelled
from muster.data.sources.base import sources

DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
#: Samples a second as recorded, and as they are looked at.
RATE, LOOKED_AT = 48_000, 8_000
#: Bands and moments of a spectrogram.
SIZE = 64
#: Samples of a window and from one to the next: 64 windows cover a second.
_WINDOW, _HOP = 256, 125
#: Softer than this, against the loudest moment and band of a recording, is silence.
DECIBELS = 80.0
_NAME = re.compile(r"(\d)_(\d\d)_(\d+)\.wav")


def spectrogram(sound: Floats) -> npt.NDArray[np.uint8]:
    """64 bands up to 4 kHz × 64 moments of a recording of a second at most: loudness in decibels, 255 the loudest.

    The sound is brought to 8,000 samples a second and put into the middle of one second of silence.
    """
    short = resample_poly(sound, 1, RATE // LOOKED_AT)[:LOOKED_AT]
    before = (LOOKED_AT - len(short)) // 2
    second = np.zeros(LOOKED_AT)
    second[before : before + len(short)] = short
    _, _, waves = stft(second, nperseg=_WINDOW, noverlap=_WINDOW - _HOP, padded=False)
    # Two neighbouring frequencies make a band; the highest one is left over.
    power = (np.abs(waves[:-1, :SIZE]) ** 2).reshape(SIZE, 2, SIZE).mean(axis=1)
    loudest = power.max()
    if loudest <= 0:
        return np.zeros((SIZE, SIZE), dtype=np.uint8)
    level = 10 * np.log10(np.maximum(power / loudest, 10 ** (-DECIBELS / 10)))
    picture: npt.NDArray[np.uint8] = np.rint(255 * (1 + level / DECIBELS)).astype(np.uint8)
    return picture


def _find(folder: Path) -> Sequence[Path]:
    """The folders of the speakers, directly or in `data`."""
    for place in (folder, folder / "data"):
        speakers = sorted(path for path in place.glob("[0-9][0-9]") if path.is_dir())
        if speakers:
            return speakers
    return ()


def _read(folders: Sequence[Path], new: NewArray, test_fraction: float) -> Arrays:
    by_speaker = [_recordings(folder) for folder in folders]
    files = [file for recordings in by_speaker for file in recordings]
    owners = np.repeat(np.arange(len(folders)), [len(recordings) for recordings in by_speaker])
    labels = np.array([int(file.name[0]) for file in files], dtype=np.int64)
    chosen = held_out(len(DIGITS) * owners + labels, test_fraction)
    arrays: Arrays = {"owner_names": np.array([folder.name for folder in folders])}
    for split, of_split in (("train", ~chosen), ("test", chosen)):
        part = np.flatnonzero(of_split)
        target = new(f"{split}_features", (len(part), 1, SIZE, SIZE), np.uint8)
        for row, position in enumerate(part.tolist()):
            target[row, 0] = spectrogram(recording(files[position]))
        arrays[f"{split}_features"] = target
        arrays[f"{split}_labels"], arrays[f"{split}_owners"] = labels[part], owners[part]
    return arrays


def _recordings(folder: Path) -> list[Path]:
    """A speaker's files, by digit and number."""
    found = list[tuple[int, int, Path]]()
    for file in folder.glob("*.wav"):
        parts = _NAME.fullmatch(file.name)
        if parts is None or parts[2] != folder.name:
            raise DataError(
                f"{file} has a name that does not say what it is",
                expected=f"digit_speaker_number.wav, such as 7_{folder.name}_12.wav in the folder {folder.name}",
            )
        found.append((int(parts[1]), int(parts[3]), file))
    if not found:
        raise DataError(f"{folder} has no recordings", expected=f"files such as 7_{folder.name}_12.wav")
    return [file for *_, file in sorted(found)]


def recording(file: Path) -> Floats:
    """The sound of a file, from −1 to 1."""
    expected = f"AudioMNIST's WAV files: one channel, 16 bits, {RATE:,} samples a second, one second at most"
    try:
        with wave.open(str(file), "rb") as stream:
            rate, channels, width, length = (
                stream.getframerate(),
                stream.getnchannels(),
                stream.getsampwidth(),
                stream.getnframes(),
            )
            content = stream.readframes(length)
    except (wave.Error, EOFError, RuntimeError) as error:  # the last one where sizes in the file contradict
        said = str(error) or "its parts contradict each other"
        problem = "is cut off" if isinstance(error, EOFError) else f"is not a WAV file that can be read ({said})"
        raise DataError(f"{file} {problem}", expected=expected, fix="get the file again") from error
    if rate != RATE:
        raise DataError(
            f"{file} has {rate:,} samples a second", expected=expected, fix="use the recordings as published"
        )
    if channels != 1 or width != 2:
        raise DataError(f"{file} has {channels} channel(s) of {8 * width} bits", expected=expected)
    if len(content) < length * width:
        raise DataError(
            f"{file} is cut off: {len(content) // width:,} of {length:,} samples are there",
            expected=expected,
            fix="get the file again",
        )
    if not 0 < length <= RATE:
        raise DataError(f"{file} lasts {length / RATE:.3g} seconds", expected=expected)
    return np.frombuffer(content, dtype="<i2").astype(np.float64) / 2**15


AUDIO_MNIST = DataFiles(
    "audio-mnist",
    needs="the folders 01 to 60 (in data/ or not) with files digit_speaker_number.wav",
    layouts={"wav": FileLayout(_find, _read)},
    home="https://github.com/soerenab/AudioMNIST",
)


@sources.register("audio-mnist")
def audio_mnist(test_fraction: float = 0.2, data_dir: str | None = None) -> Dataset:
    """AudioMNIST: 30,000 spoken digits as spectrograms of 64 bands × 64 moments; natural client = speaker.

    `test_fraction` of every speaker's recordings of every digit are for testing.
    """
    if not 0.0 < test_fraction < 1.0:
        raise ConfigError(f"bad value for 'data.test_fraction': {test_fraction}", expected="between 0 and 1")
    arrays, folder = AUDIO_MNIST.arrays(data_dir, test_fraction=test_fraction)
    return labelled("audio-mnist", arrays, folder, Normalisation(scale=1 / 255), DIGITS)
