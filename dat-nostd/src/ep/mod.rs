//! Endpoints. DAT 1.2, endpoint management and data transfer operations.

pub(crate) mod attr;
pub(crate) mod dto;
pub(crate) mod dto_ext;
pub(crate) mod endpoint;
pub(crate) mod life;
pub(crate) mod modify;
pub(crate) mod places;
pub(crate) mod plan;
pub(crate) mod post;
pub(crate) mod qp;
pub(crate) mod receives;
pub(crate) mod streams;
pub(crate) mod watermark;
pub(crate) mod work;
