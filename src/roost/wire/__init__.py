"""The wire form of what agents and servers say: generated from proto/, and the translation to model/frames."""
