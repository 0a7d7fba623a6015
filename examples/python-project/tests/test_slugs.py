"""The rules of a slug."""

import unittest

from slugs import slug


class Slugs(unittest.TestCase):
    def test_words_have_dashes_between(self) -> None:
        self.assertEqual(slug("Hello, World"), "hello-world")

    def test_nothing_stays_nothing(self) -> None:
        self.assertEqual(slug(" ?! "), "")
