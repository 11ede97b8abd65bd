//! Guides: [`rdma_by_cookie`] moves data between the memories of two programs, and [`costs`] lists
//! what messages cost.

pub mod costs;
pub mod rdma_by_cookie;
