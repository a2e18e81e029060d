"""AudioMNIST: the layout of speakers' folders, spectrograms of known sounds, and recordings that are wrong."""

from __future__ import annotations

import random
import wave
from pathlib import Path

import numpy as np
import pytest

import muster
from muster.core.errors import ConfigError, DataError
from muster.core.randomness import generator
from muster.data.partition import schemes
from muster.data.sources import sources
from muster.data.sources.audio_mnist import DIGITS, RATE, recording, spectrogram
from muster.experiment import from_dict


def tone(hertz: float, seconds: float = 0.5, loudness: float = 0.5) -> np.ndarray:
    return loudness * np.sin(2 * np.pi * hertz * np.arange(int(seconds * RATE)) / RATE)


def write(file: Path, sound: np.ndarray, *, rate: int = RATE, channels: int = 1, width: int = 2) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    with wave.open(str(file), "wb") as stream:
        stream.setnchannels(channels)
        stream.setsampwidth(width)
        stream.setframerate(rate)
        stream.writeframes((32767 * sound).astype("<i2").tobytes())
    return file


@pytest.fixture
def speakers(isolated):
    """Three speakers say each digit five times: a tone whose pitch is the digit."""
    folder = isolated / "audio-mnist"
    for speaker in ("01", "02", "17"):
        for digit in range(10):
            for number in range(5):
                write(folder / "data" / speaker / f"{digit}_{speaker}_{number}.wav", tone(300 + 350 * digit, 0.3))
    (folder / "data" / "audioMNIST_meta.txt").write_text("{}")
    return folder


@pytest.mark.parametrize("hertz", [200.0, 1000.0, 3500.0])
def test_a_tone_is_a_line_at_its_pitch_and_time(hertz):
    """Bands are 62.5 Hz wide. Half a second in the middle of one: from a quarter to three quarters."""
    found = spectrogram(tone(hertz)).astype(int)
    assert found.shape == (64, 64)
    assert found.max() == 255
    loudest = found[:, 32].argmax()
    assert abs((loudest + 0.5) * 62.5 - hertz) <= 62.5
    inside, outside = found[loudest, 18:46], np.r_[found[loudest, :13], found[loudest, 51:]]
    assert inside.min() > 240
    assert outside.max() < 100


def test_loudness_does_not_matter_but_decibels_do():
    assert np.array_equal(spectrogram(tone(900.0, loudness=0.5)), spectrogram(tone(900.0, loudness=0.05)))
    two = spectrogram(tone(900.0) + tone(2500.0, loudness=0.005)).astype(int)
    # A hundredth of the amplitude is 40 of 80 decibels less.
    assert two[:, 32].argmax() == int(900 / 62.5)
    assert two[int(2500 / 62.5) - 1 : int(2500 / 62.5) + 2, 32].max() == pytest.approx(255 / 2, abs=6)


def test_silence_is_black():
    assert not spectrogram(np.zeros(100)).any()


def test_what_is_too_high_to_be_looked_at_is_not_folded_down():
    both = spectrogram(tone(1000.0) + tone(9000.0))
    assert abs(both.astype(int) - spectrogram(tone(1000.0))).max() <= 60  # a sound at 1 kHz would be 255


def test_speakers_are_clients(speakers):
    data = sources.build("audio-mnist", {})
    assert (len(data.train), len(data.test), data.sample_shape) == (120, 30, (1, 64, 64))
    assert (data.class_names, data.owner_names) == (DIGITS, ("01", "02", "17"))
    for part, copies in ((data.train, 4), (data.test, 1)):
        assert np.bincount(part.owners * 10 + part.labels).tolist() == [copies] * 30
        loudest = part.features[:, 0, :, 32].argmax(axis=1)
        assert (abs((loudest + 0.5) * 62.5 - (300 + 350 * part.labels)) <= 62.5).all()
    partition = schemes.build("natural", {}).divide(data, generator(0, "partition"))
    assert partition.train.sizes.tolist() == [40] * 3


def test_it_trains(speakers):
    settings = {
        "rounds": 2,
        "data": {"source": "audio-mnist"},
        "partition": {"scheme": "natural"},
        "model": {"name": "logistic"},
        "training": {"lr": 0.01},
        "selection": {"method": "random", "clients_per_round": 3},
    }
    metrics = muster.run(from_dict(settings), workers=0).metrics
    assert metrics[-1]["accuracy"] > 0.5


def test_sixteen_bits_from_minus_one_to_one(tmp_path):
    sound = tone(440.0, 0.1)
    np.testing.assert_allclose(recording(write(tmp_path / "a.wav", sound)), sound, atol=1e-4)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"rate": 44_100}, "has 44,100 samples a second"),
        ({"channels": 2}, r"has 2 channel\(s\) of 16 bits"),
        ({"width": 1}, r"has 1 channel\(s\) of 8 bits"),
    ],
)
def test_other_recordings_are_refused(speakers, options, words):
    file = write(speakers / "data/02/3_02_1.wav", tone(500.0), **options)
    with pytest.raises(DataError, match=words) as caught:
        sources.build("audio-mnist", {})
    assert str(file) in str(caught.value)
    assert "48,000 samples a second" in caught.value.expected


def test_recordings_that_last_too_long_or_no_time(speakers):
    file = speakers / "data/02/3_02_1.wav"
    for seconds, words in ((1.25, "lasts 1.25 seconds"), (0.0, "lasts 0 seconds")):
        write(file, tone(500.0, seconds))
        with pytest.raises(DataError, match=words):
            sources.build("audio-mnist", {})


@pytest.mark.parametrize(
    ("kept", "words"), [(30, "is cut off"), (3000, "is cut off: 1,478 of 14,400"), (0, "is cut off")]
)
def test_truncated_files(speakers, kept, words):
    file = speakers / "data/17/0_17_4.wav"
    file.write_bytes(file.read_bytes()[:kept])
    with pytest.raises(DataError, match=words) as caught:
        sources.build("audio-mnist", {})
    assert str(file) in str(caught.value)


def test_damaged_headers_are_one_clear_message(tmp_path):
    """Sizes in the file that contradict each other made the reader raise without a word."""
    file = write(tmp_path / "0_01_0.wav", tone(300, 0.02))
    whole, draw = file.read_bytes(), random.Random(2)
    said = []
    for _ in range(400):
        content = bytearray(whole)
        for _ in range(3):
            content[draw.randrange(60)] = draw.randrange(256)
        file.write_bytes(bytes(content))
        try:
            recording(file)
        except DataError as error:
            said.append(str(error))
    assert len(said) > 300
    assert not any("()" in message for message in said)


def test_what_is_no_recording(speakers):
    (speakers / "data/17/0_17_4.wav").write_text("a letter, not a recording, of some length")
    with pytest.raises(DataError, match="not a WAV file"):
        sources.build("audio-mnist", {})


@pytest.mark.parametrize("name", ["3_02_1.wav", "10_01_1.wav", "three.wav"])
def test_names_say_digit_and_speaker(speakers, name):
    write(speakers / "data/01" / name, tone(500.0))
    with pytest.raises(DataError, match="does not say what it is"):
        sources.build("audio-mnist", {})


def test_empty_folders_absent_data_and_bad_options(speakers, isolated):
    (speakers / "data" / "60").mkdir()
    with pytest.raises(DataError, match="60 has no recordings"):
        sources.build("audio-mnist", {})
    with pytest.raises(ConfigError, match=r"data\.test_fraction"):
        sources.build("audio-mnist", {"test_fraction": 0})
    speakers.rename(isolated / "elsewhere")
    with pytest.raises(DataError, match=r"is not here(.|\n)*soerenab/AudioMNIST"):
        sources.build("audio-mnist", {})
