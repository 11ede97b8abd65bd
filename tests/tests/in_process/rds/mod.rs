//! RDS between nodes.

mod apps;
mod chaos;
mod connect;
mod connections;
mod features;
mod fuzz;
mod hostile;
mod info;
mod isolation;
mod layouts;
mod load;
mod messages;
mod rdma;
mod socket;
