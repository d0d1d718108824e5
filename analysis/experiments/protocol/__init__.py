"""Every arm at its own best learning rate, judged on fresh seeds: what `PROTOCOL.md` lays down, carried out."""
