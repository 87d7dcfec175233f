"""Ways to run Athanor. `local` is the whole stack on one machine; nothing here is imported by the platform."""
