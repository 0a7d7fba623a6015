"""Virtual machines on a node: its QEMU, the images and bridges it offers, and what a run's machine is made of."""
