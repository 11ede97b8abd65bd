//! Links between ports, their faults, the subnet's manager and administrator, and capture.
