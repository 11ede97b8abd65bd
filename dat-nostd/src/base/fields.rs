//! Attribute masks, with the bits of the DAT 1.2 headers. The queries of this crate fill everything and so take none, as the
//! specification allows; [`Adapter::ep_modify`](crate::Adapter::ep_modify) takes one, and a C interface checks the others here.

use bitflags::bitflags;

use crate::base::ret::{DatResult, DatReturn, ReturnType, Subtype};

macro_rules! masks {
    ($($(#[$m:meta])* $name:ident: $bits:ty, $argument:ident { $($field:ident = $value:literal,)* })*) => {$(
        bitflags! {
            $(#[$m])*
            #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
            pub struct $name: $bits { $(
                #[doc = concat!("The specification's `", stringify!($field), "`.")]
                const $field = $value;
            )* }
        }

        impl $name {
            /// The mask with these bits.
            ///
            /// # Errors
            /// INVALID_PARAMETER if one of them means nothing.
            pub fn check(bits: $bits) -> DatResult<Self> {
                let wrong = DatReturn::error(ReturnType::InvalidParameter, Subtype::$argument);
                Self::from_bits(bits).ok_or(wrong)
            }
        }
    )*};
}

masks! {
    /// `DAT_EVD_PARAM_MASK`.
    EvdFields: u32, InvalidArg2 {
        IA_HANDLE = 0x01, EVD_QLEN = 0x02, EVD_STATE = 0x04, CNO = 0x08, EVD_FLAGS = 0x10,
    }
    /// `DAT_CNO_PARAM_MASK`.
    CnoFields: u32, InvalidArg2 {
        IA_HANDLE = 0x1, AGENT = 0x2,
    }
    /// `DAT_LMR_PARAM_MASK`.
    LmrFields: u32, InvalidArg2 {
        IA_HANDLE = 0x001, MEM_TYPE = 0x002, REGION_DESC = 0x004, LENGTH = 0x008, PZ_HANDLE = 0x010,
        MEM_PRIV = 0x020, LMR_CONTEXT = 0x040, RMR_CONTEXT = 0x080, REGISTERED_SIZE = 0x100,
        REGISTERED_ADDRESS = 0x200,
    }
    /// `DAT_RMR_PARAM_MASK`.
    RmrFields: u32, InvalidArg2 {
        IA_HANDLE = 0x01, PZ_HANDLE = 0x02, LMR_TRIPLET = 0x04, MEM_PRIV = 0x08, RMR_CONTEXT = 0x10,
    }
    /// `DAT_PZ_PARAM_MASK`.
    PzFields: u32, InvalidArg2 {
        IA_HANDLE = 0x1,
    }
    /// `DAT_PSP_PARAM_MASK`.
    PspFields: u32, InvalidArg2 {
        IA_HANDLE = 0x1, CONN_QUAL = 0x2, EVD_HANDLE = 0x4, PSP_FLAGS = 0x8,
    }
    /// `DAT_RSP_PARAM_MASK`.
    RspFields: u32, InvalidArg2 {
        IA_HANDLE = 0x1, CONN_QUAL = 0x2, EVD_HANDLE = 0x4, EP_HANDLE = 0x8,
    }
    /// `DAT_CR_PARAM_MASK`.
    CrFields: u32, InvalidArg2 {
        REMOTE_IA_ADDRESS_PTR = 0x01, REMOTE_PORT_QUAL = 0x02, PRIVATE_DATA_SIZE = 0x04, PRIVATE_DATA = 0x08,
        LOCAL_EP_HANDLE = 0x10,
    }
    /// `DAT_SRQ_PARAM_MASK`.
    SrqFields: u32, InvalidArg2 {
        IA_HANDLE = 0x01, SRQ_STATE = 0x02, PZ_HANDLE = 0x04, MAX_RECV_DTO = 0x08, MAX_RECV_IOV = 0x10,
        LOW_WATERMARK = 0x20, AVAILABLE_DTO_COUNT = 0x40, OUTSTANDING_DTO_COUNT = 0x80,
    }
    /// `DAT_EP_PARAM_MASK`.
    EpFields: u64, InvalidArg2 {
        IA_HANDLE = 0x1, EP_STATE = 0x2, LOCAL_IA_ADDRESS_PTR = 0x4, LOCAL_PORT_QUAL = 0x8,
        REMOTE_IA_ADDRESS_PTR = 0x10, REMOTE_PORT_QUAL = 0x20, PZ_HANDLE = 0x40, RECV_EVD_HANDLE = 0x80,
        REQUEST_EVD_HANDLE = 0x100, CONNECT_EVD_HANDLE = 0x200, SRQ_HANDLE = 0x400,
        SERVICE_TYPE = 0x1000, MAX_MESSAGE_SIZE = 0x2000, MAX_RDMA_SIZE = 0x4000, QOS = 0x8000,
        RECV_COMPLETION_FLAGS = 0x1_0000, REQUEST_COMPLETION_FLAGS = 0x2_0000, MAX_RECV_DTOS = 0x4_0000,
        MAX_REQUEST_DTOS = 0x8_0000, MAX_RECV_IOV = 0x10_0000, MAX_REQUEST_IOV = 0x20_0000,
        MAX_RDMA_READ_IN = 0x40_0000, MAX_RDMA_READ_OUT = 0x80_0000, SRQ_SOFT_HW = 0x100_0000,
        MAX_RDMA_READ_IOV = 0x200_0000, MAX_RDMA_WRITE_IOV = 0x400_0000, NUM_TRANSPORT_ATTR = 0x800_0000,
        TRANSPORT_SPECIFIC_ATTR = 0x1000_0000, NUM_PROVIDER_ATTR = 0x2000_0000,
        PROVIDER_SPECIFIC_ATTR = 0x4000_0000,
    }
    /// `DAT_IA_ATTR_MASK`: bit n is the n-th member.
    IaFields: u64, InvalidArg3 {
        ALL_MEMBERS = 0x7_ffff_ffff,
    }
    /// `DAT_PROVIDER_ATTR_MASK`: bit n is the n-th member.
    ProviderFields: u64, InvalidArg5 {
        ALL_MEMBERS = 0x3ff_ffff,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_headers_masks() {
        assert_eq!(EvdFields::all().bits(), 0x1f);
        assert_eq!(CnoFields::all().bits(), 0x3);
        assert_eq!(LmrFields::all().bits(), 0x3ff);
        assert_eq!(RmrFields::all().bits(), 0x1f);
        assert_eq!(PspFields::all().bits(), 0xf);
        assert_eq!(RspFields::all().bits(), 0xf);
        assert_eq!(CrFields::all().bits(), 0x1f);
        assert_eq!(SrqFields::all().bits(), 0xff);
        assert_eq!(EpFields::all().bits(), 0x7fff_f7ff);
        let wrong = |argument| DatReturn::error(ReturnType::InvalidParameter, argument);
        assert_eq!(EvdFields::check(0x20), Err(wrong(Subtype::InvalidArg2)));
        assert_eq!(EpFields::check(0x800), Err(wrong(Subtype::InvalidArg2)));
        assert_eq!(IaFields::check(1 << 35), Err(wrong(Subtype::InvalidArg3)));
        assert_eq!(ProviderFields::check(1 << 26), Err(wrong(Subtype::InvalidArg5)));
        assert_eq!(PzFields::check(1), Ok(PzFields::IA_HANDLE));
    }
}
