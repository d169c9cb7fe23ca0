"""The machines: devices, nodes and links, from a catalogue, a file or this machine."""
