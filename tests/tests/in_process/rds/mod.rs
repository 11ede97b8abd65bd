//! RDS between nodes.

mod apps;
mod chaos;
mod connect;
mod connections;
mod fairness;
mod features;
mod fuzz;
mod hostile;
mod info;
mod isolation;
mod latency;
mod layouts;
mod lent;
mod lives;
mod load;
mod local;
mod messages;
mod page;
mod raw;
mod rdma;
mod registered;
mod scale;
mod socket;
mod stress;
mod windows;
mod within;
