//! `DAT_RETURN`: class (bits 31–30), type (bits 29–16), subtype (bits 15–0). DAT 1.2, `dat_error.h`.

use core::ffi::CStr;
use core::fmt;

/// What every call answers.
pub type DatResult<T> = Result<T, DatReturn>;

/// A `DAT_RETURN` other than `DAT_SUCCESS`. Only the type is contract, the subtype is advice.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct DatReturn(pub u32);

/// `DAT_CLASS_ERROR`.
pub const CLASS_ERROR: u32 = 0x8000_0000;
/// `DAT_CLASS_WARNING`.
pub const CLASS_WARNING: u32 = 0x4000_0000;
/// `DAT_TYPE_MASK`.
pub const TYPE_MASK: u32 = 0x3fff_0000;
/// `DAT_SUBTYPE_MASK`.
pub const SUBTYPE_MASK: u32 = 0x0000_ffff;

/// Text that ends with a zero.
const fn c_text(text: &str) -> &CStr {
    match CStr::from_bytes_with_nul(text.as_bytes()) {
        Ok(text) => text,
        Err(_) => c"",
    }
}

macro_rules! codes {
    ($(#[$m:meta])* $name:ident: $($(#[$vm:meta])* $variant:ident = $value:literal $text:literal,)*) => {
        $(#[$m])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u16)]
        pub enum $name { $($(#[$vm])* $variant = $value,)* }

        impl $name {
            /// All values, in the order of their numbers.
            pub const ALL: &'static [$name] = &[$($name::$variant,)*];

            /// The value with this number.
            pub const fn from_number(number: u16) -> Option<Self> {
                match number { $($value => Some($name::$variant),)* _ => None }
            }

            /// The name in `dat_error.h`.
            pub const fn name(self) -> &'static str {
                match self { $($name::$variant => $text,)* }
            }

            /// The same for C.
            const fn c_name(self) -> &'static CStr {
                match self { $($name::$variant => c_text(concat!($text, "\0")),)* }
            }
        }
    };
}

codes! {
    /// The type of a `DAT_RETURN`; numbers are those of bits 29–16.
    ReturnType:
    /// The wait was aborted: IA closed or EVD destroyed.
    Abort = 0x1 "DAT_ABORT",
    /// Another service point listens on the qualifier.
    ConnQualInUse = 0x2 "DAT_CONN_QUAL_IN_USE",
    /// A table, queue or pool is full.
    InsufficientResources = 0x3 "DAT_INSUFFICIENT_RESOURCES",
    /// The provider or the device failed.
    InternalError = 0x4 "DAT_INTERNAL_ERROR",
    /// Dead, foreign or wrong-kind handle.
    InvalidHandle = 0x5 "DAT_INVALID_HANDLE",
    /// An argument outside its range.
    InvalidParameter = 0x6 "DAT_INVALID_PARAMETER",
    /// The object's state forbids the call.
    InvalidState = 0x7 "DAT_INVALID_STATE",
    /// Lengths of the local and the remote buffer do not fit.
    LengthError = 0x8 "DAT_LENGTH_ERROR",
    /// The provider does not offer this model.
    ModelNotSupported = 0x9 "DAT_MODEL_NOT_SUPPORTED",
    /// No provider of this name.
    ProviderNotFound = 0xa "DAT_PROVIDER_NOT_FOUND",
    /// The memory region lacks the right.
    PrivilegesViolation = 0xb "DAT_PRIVILEGES_VIOLATION",
    /// Protection zones differ.
    ProtectionViolation = 0xc "DAT_PROTECTION_VIOLATION",
    /// No event.
    QueueEmpty = 0xd "DAT_QUEUE_EMPTY",
    /// The software event queue is full.
    QueueFull = 0xe "DAT_QUEUE_FULL",
    /// The time-out passed.
    TimeoutExpired = 0xf "DAT_TIMEOUT_EXPIRED",
    /// The name is taken.
    ProviderAlreadyRegistered = 0x10 "DAT_PROVIDER_ALREADY_REGISTERED",
    /// The provider has open IAs.
    ProviderInUse = 0x11 "DAT_PROVIDER_IN_USE",
    /// The address is known to be bad.
    InvalidAddress = 0x12 "DAT_INVALID_ADDRESS",
    /// The wait was interrupted.
    InterruptedCall = 0x13 "DAT_INTERRUPTED_CALL",
    /// No qualifier is free.
    ConnQualUnavailable = 0x14 "DAT_CONN_QUAL_UNAVAILABLE",
    /// The call does not exist here.
    NotImplemented = 0xfff "DAT_NOT_IMPLEMENTED",
}

codes! {
    /// The subtype of a `DAT_RETURN` (advice, never contract); the name says which argument or state is meant.
    Subtype:
    /// `DAT_NO_SUBTYPE`
    NoSubtype = 0 "DAT_NO_SUBTYPE",
    /// `DAT_SUB_INTERRUPTED`
    SubInterrupted = 1 "DAT_SUB_INTERRUPTED",
    /// `DAT_RESOURCE_MEMORY`
    ResourceMemory = 2 "DAT_RESOURCE_MEMORY",
    /// `DAT_RESOURCE_DEVICE`
    ResourceDevice = 3 "DAT_RESOURCE_DEVICE",
    /// `DAT_RESOURCE_TEP`
    ResourceTep = 4 "DAT_RESOURCE_TEP",
    /// `DAT_RESOURCE_TEVD`
    ResourceTevd = 5 "DAT_RESOURCE_TEVD",
    /// `DAT_RESOURCE_PROTECTION_DOMAIN`
    ResourceProtectionDomain = 6 "DAT_RESOURCE_PROTECTION_DOMAIN",
    /// `DAT_RESOURCE_MEMORY_REGION`
    ResourceMemoryRegion = 7 "DAT_RESOURCE_MEMORY_REGION",
    /// `DAT_RESOURCE_ERROR_HANDLER`
    ResourceErrorHandler = 8 "DAT_RESOURCE_ERROR_HANDLER",
    /// `DAT_RESOURCE_CREDITS`
    ResourceCredits = 9 "DAT_RESOURCE_CREDITS",
    /// `DAT_RESOURCE_SRQ`
    ResourceSrq = 10 "DAT_RESOURCE_SRQ",
    /// `DAT_INVALID_HANDLE_IA`
    InvalidHandleIa = 11 "DAT_INVALID_HANDLE_IA",
    /// `DAT_INVALID_HANDLE_EP`
    InvalidHandleEp = 12 "DAT_INVALID_HANDLE_EP",
    /// `DAT_INVALID_HANDLE_LMR`
    InvalidHandleLmr = 13 "DAT_INVALID_HANDLE_LMR",
    /// `DAT_INVALID_HANDLE_RMR`
    InvalidHandleRmr = 14 "DAT_INVALID_HANDLE_RMR",
    /// `DAT_INVALID_HANDLE_PZ`
    InvalidHandlePz = 15 "DAT_INVALID_HANDLE_PZ",
    /// `DAT_INVALID_HANDLE_PSP`
    InvalidHandlePsp = 16 "DAT_INVALID_HANDLE_PSP",
    /// `DAT_INVALID_HANDLE_RSP`
    InvalidHandleRsp = 17 "DAT_INVALID_HANDLE_RSP",
    /// `DAT_INVALID_HANDLE_CR`
    InvalidHandleCr = 18 "DAT_INVALID_HANDLE_CR",
    /// `DAT_INVALID_HANDLE_CNO`
    InvalidHandleCno = 19 "DAT_INVALID_HANDLE_CNO",
    /// `DAT_INVALID_HANDLE_EVD_CR`
    InvalidHandleEvdCr = 20 "DAT_INVALID_HANDLE_EVD_CR",
    /// `DAT_INVALID_HANDLE_EVD_REQUEST`
    InvalidHandleEvdRequest = 21 "DAT_INVALID_HANDLE_EVD_REQUEST",
    /// `DAT_INVALID_HANDLE_EVD_RECV`
    InvalidHandleEvdRecv = 22 "DAT_INVALID_HANDLE_EVD_RECV",
    /// `DAT_INVALID_HANDLE_EVD_CONN`
    InvalidHandleEvdConn = 23 "DAT_INVALID_HANDLE_EVD_CONN",
    /// `DAT_INVALID_HANDLE_EVD_ASYNC`
    InvalidHandleEvdAsync = 24 "DAT_INVALID_HANDLE_EVD_ASYNC",
    /// `DAT_INVALID_HANDLE_SRQ`
    InvalidHandleSrq = 25 "DAT_INVALID_HANDLE_SRQ",
    /// `DAT_INVALID_HANDLE1`
    InvalidHandle1 = 26 "DAT_INVALID_HANDLE1",
    /// `DAT_INVALID_HANDLE2`
    InvalidHandle2 = 27 "DAT_INVALID_HANDLE2",
    /// `DAT_INVALID_HANDLE3`
    InvalidHandle3 = 28 "DAT_INVALID_HANDLE3",
    /// `DAT_INVALID_HANDLE4`
    InvalidHandle4 = 29 "DAT_INVALID_HANDLE4",
    /// `DAT_INVALID_HANDLE5`
    InvalidHandle5 = 30 "DAT_INVALID_HANDLE5",
    /// `DAT_INVALID_HANDLE6`
    InvalidHandle6 = 31 "DAT_INVALID_HANDLE6",
    /// `DAT_INVALID_HANDLE7`
    InvalidHandle7 = 32 "DAT_INVALID_HANDLE7",
    /// `DAT_INVALID_HANDLE8`
    InvalidHandle8 = 33 "DAT_INVALID_HANDLE8",
    /// `DAT_INVALID_HANDLE9`
    InvalidHandle9 = 34 "DAT_INVALID_HANDLE9",
    /// `DAT_INVALID_HANDLE10`
    InvalidHandle10 = 35 "DAT_INVALID_HANDLE10",
    /// `DAT_INVALID_ARG1`
    InvalidArg1 = 36 "DAT_INVALID_ARG1",
    /// `DAT_INVALID_ARG2`
    InvalidArg2 = 37 "DAT_INVALID_ARG2",
    /// `DAT_INVALID_ARG3`
    InvalidArg3 = 38 "DAT_INVALID_ARG3",
    /// `DAT_INVALID_ARG4`
    InvalidArg4 = 39 "DAT_INVALID_ARG4",
    /// `DAT_INVALID_ARG5`
    InvalidArg5 = 40 "DAT_INVALID_ARG5",
    /// `DAT_INVALID_ARG6`
    InvalidArg6 = 41 "DAT_INVALID_ARG6",
    /// `DAT_INVALID_ARG7`
    InvalidArg7 = 42 "DAT_INVALID_ARG7",
    /// `DAT_INVALID_ARG8`
    InvalidArg8 = 43 "DAT_INVALID_ARG8",
    /// `DAT_INVALID_ARG9`
    InvalidArg9 = 44 "DAT_INVALID_ARG9",
    /// `DAT_INVALID_ARG10`
    InvalidArg10 = 45 "DAT_INVALID_ARG10",
    /// `DAT_INVALID_STATE_EP_UNCONNECTED`
    InvalidStateEpUnconnected = 46 "DAT_INVALID_STATE_EP_UNCONNECTED",
    /// `DAT_INVALID_STATE_EP_ACTCONNPENDING`
    InvalidStateEpActconnpending = 47 "DAT_INVALID_STATE_EP_ACTCONNPENDING",
    /// `DAT_INVALID_STATE_EP_PASSCONNPENDING`
    InvalidStateEpPassconnpending = 48 "DAT_INVALID_STATE_EP_PASSCONNPENDING",
    /// `DAT_INVALID_STATE_EP_TENTCONNPENDING`
    InvalidStateEpTentconnpending = 49 "DAT_INVALID_STATE_EP_TENTCONNPENDING",
    /// `DAT_INVALID_STATE_EP_CONNECTED`
    InvalidStateEpConnected = 50 "DAT_INVALID_STATE_EP_CONNECTED",
    /// `DAT_INVALID_STATE_EP_DISCONNECTED`
    InvalidStateEpDisconnected = 51 "DAT_INVALID_STATE_EP_DISCONNECTED",
    /// `DAT_INVALID_STATE_EP_RESERVED`
    InvalidStateEpReserved = 52 "DAT_INVALID_STATE_EP_RESERVED",
    /// `DAT_INVALID_STATE_EP_COMPLPENDING`
    InvalidStateEpComplpending = 53 "DAT_INVALID_STATE_EP_COMPLPENDING",
    /// `DAT_INVALID_STATE_EP_DISCPENDING`
    InvalidStateEpDiscpending = 54 "DAT_INVALID_STATE_EP_DISCPENDING",
    /// `DAT_INVALID_STATE_EP_PROVIDERCONTROL`
    InvalidStateEpProvidercontrol = 55 "DAT_INVALID_STATE_EP_PROVIDERCONTROL",
    /// `DAT_INVALID_STATE_EP_NOTREADY`
    InvalidStateEpNotready = 56 "DAT_INVALID_STATE_EP_NOTREADY",
    /// `DAT_INVALID_STATE_EP_RECV_WATERMARK`
    InvalidStateEpRecvWatermark = 57 "DAT_INVALID_STATE_EP_RECV_WATERMARK",
    /// `DAT_INVALID_STATE_EP_PZ`
    InvalidStateEpPz = 58 "DAT_INVALID_STATE_EP_PZ",
    /// `DAT_INVALID_STATE_EP_EVD_REQUEST`
    InvalidStateEpEvdRequest = 59 "DAT_INVALID_STATE_EP_EVD_REQUEST",
    /// `DAT_INVALID_STATE_EP_EVD_RECV`
    InvalidStateEpEvdRecv = 60 "DAT_INVALID_STATE_EP_EVD_RECV",
    /// `DAT_INVALID_STATE_EP_EVD_CONNECT`
    InvalidStateEpEvdConnect = 61 "DAT_INVALID_STATE_EP_EVD_CONNECT",
    /// `DAT_INVALID_STATE_EP_UNCONFIGURED`
    InvalidStateEpUnconfigured = 62 "DAT_INVALID_STATE_EP_UNCONFIGURED",
    /// `DAT_INVALID_STATE_EP_UNCONFRESERVED`
    InvalidStateEpUnconfreserved = 63 "DAT_INVALID_STATE_EP_UNCONFRESERVED",
    /// `DAT_INVALID_STATE_EP_UNCONFPASSIVE`
    InvalidStateEpUnconfpassive = 64 "DAT_INVALID_STATE_EP_UNCONFPASSIVE",
    /// `DAT_INVALID_STATE_EP_UNCONFTENTATIVE`
    InvalidStateEpUnconftentative = 65 "DAT_INVALID_STATE_EP_UNCONFTENTATIVE",
    /// `DAT_INVALID_STATE_CNO_IN_USE`
    InvalidStateCnoInUse = 66 "DAT_INVALID_STATE_CNO_IN_USE",
    /// `DAT_INVALID_STATE_CNO_DEAD`
    InvalidStateCnoDead = 67 "DAT_INVALID_STATE_CNO_DEAD",
    /// `DAT_INVALID_STATE_EVD_OPEN`
    InvalidStateEvdOpen = 68 "DAT_INVALID_STATE_EVD_OPEN",
    /// `DAT_INVALID_STATE_EVD_ENABLED`
    InvalidStateEvdEnabled = 69 "DAT_INVALID_STATE_EVD_ENABLED",
    /// `DAT_INVALID_STATE_EVD_DISABLED`
    InvalidStateEvdDisabled = 70 "DAT_INVALID_STATE_EVD_DISABLED",
    /// `DAT_INVALID_STATE_EVD_WAITABLE`
    InvalidStateEvdWaitable = 71 "DAT_INVALID_STATE_EVD_WAITABLE",
    /// `DAT_INVALID_STATE_EVD_UNWAITABLE`
    InvalidStateEvdUnwaitable = 72 "DAT_INVALID_STATE_EVD_UNWAITABLE",
    /// `DAT_INVALID_STATE_EVD_IN_USE`
    InvalidStateEvdInUse = 73 "DAT_INVALID_STATE_EVD_IN_USE",
    /// `DAT_INVALID_STATE_EVD_CONFIG_NOTIFY`
    InvalidStateEvdConfigNotify = 74 "DAT_INVALID_STATE_EVD_CONFIG_NOTIFY",
    /// `DAT_INVALID_STATE_EVD_CONFIG_SOLICITED`
    InvalidStateEvdConfigSolicited = 75 "DAT_INVALID_STATE_EVD_CONFIG_SOLICITED",
    /// `DAT_INVALID_STATE_EVD_CONFIG_THRESHOLD`
    InvalidStateEvdConfigThreshold = 76 "DAT_INVALID_STATE_EVD_CONFIG_THRESHOLD",
    /// `DAT_INVALID_STATE_EVD_WAITER`
    InvalidStateEvdWaiter = 77 "DAT_INVALID_STATE_EVD_WAITER",
    /// `DAT_INVALID_STATE_EVD_ASYNC`
    InvalidStateEvdAsync = 78 "DAT_INVALID_STATE_EVD_ASYNC",
    /// `DAT_INVALID_STATE_IA_IN_USE`
    InvalidStateIaInUse = 79 "DAT_INVALID_STATE_IA_IN_USE",
    /// `DAT_INVALID_STATE_LMR_IN_USE`
    InvalidStateLmrInUse = 80 "DAT_INVALID_STATE_LMR_IN_USE",
    /// `DAT_INVALID_STATE_LMR_FREE`
    InvalidStateLmrFree = 81 "DAT_INVALID_STATE_LMR_FREE",
    /// `DAT_INVALID_STATE_PZ_IN_USE`
    InvalidStatePzInUse = 82 "DAT_INVALID_STATE_PZ_IN_USE",
    /// `DAT_INVALID_STATE_PZ_FREE`
    InvalidStatePzFree = 83 "DAT_INVALID_STATE_PZ_FREE",
    /// `DAT_INVALID_STATE_SRQ_OPERATIONAL`
    InvalidStateSrqOperational = 84 "DAT_INVALID_STATE_SRQ_OPERATIONAL",
    /// `DAT_INVALID_STATE_SRQ_ERROR`
    InvalidStateSrqError = 85 "DAT_INVALID_STATE_SRQ_ERROR",
    /// `DAT_INVALID_STATE_SRQ_IN_USE`
    InvalidStateSrqInUse = 86 "DAT_INVALID_STATE_SRQ_IN_USE",
    /// `DAT_PRIVILEGES_READ`
    PrivilegesRead = 87 "DAT_PRIVILEGES_READ",
    /// `DAT_PRIVILEGES_WRITE`
    PrivilegesWrite = 88 "DAT_PRIVILEGES_WRITE",
    /// `DAT_PRIVILEGES_RDMA_READ`
    PrivilegesRdmaRead = 89 "DAT_PRIVILEGES_RDMA_READ",
    /// `DAT_PRIVILEGES_RDMA_WRITE`
    PrivilegesRdmaWrite = 90 "DAT_PRIVILEGES_RDMA_WRITE",
    /// `DAT_PROTECTION_READ`
    ProtectionRead = 91 "DAT_PROTECTION_READ",
    /// `DAT_PROTECTION_WRITE`
    ProtectionWrite = 92 "DAT_PROTECTION_WRITE",
    /// `DAT_PROTECTION_RDMA_READ`
    ProtectionRdmaRead = 93 "DAT_PROTECTION_RDMA_READ",
    /// `DAT_PROTECTION_RDMA_WRITE`
    ProtectionRdmaWrite = 94 "DAT_PROTECTION_RDMA_WRITE",
    /// `DAT_INVALID_ADDRESS_UNSUPPORTED`
    InvalidAddressUnsupported = 95 "DAT_INVALID_ADDRESS_UNSUPPORTED",
    /// `DAT_INVALID_ADDRESS_UNREACHABLE`
    InvalidAddressUnreachable = 96 "DAT_INVALID_ADDRESS_UNREACHABLE",
    /// `DAT_INVALID_ADDRESS_MALFORMED`
    InvalidAddressMalformed = 97 "DAT_INVALID_ADDRESS_MALFORMED",
    /// `DAT_NAME_NOT_REGISTERED`
    NameNotRegistered = 98 "DAT_NAME_NOT_REGISTERED",
    /// `DAT_MAJOR_NOT_FOUND`
    MajorNotFound = 99 "DAT_MAJOR_NOT_FOUND",
    /// `DAT_MINOR_NOT_FOUND`
    MinorNotFound = 100 "DAT_MINOR_NOT_FOUND",
    /// `DAT_THREAD_SAFETY_NOT_FOUND`
    ThreadSafetyNotFound = 101 "DAT_THREAD_SAFETY_NOT_FOUND",
}

impl DatReturn {
    /// `DAT_QUEUE_EMPTY` as `evd_dequeue` gives it: without class bits, because existing consumers compare the
    /// bare value (dtest polls with `== DAT_QUEUE_EMPTY`).
    pub const QUEUE_EMPTY: DatReturn = DatReturn((ReturnType::QueueEmpty as u32) << 16);

    /// An error of this type and subtype.
    pub const fn error(kind: ReturnType, subtype: Subtype) -> Self {
        Self(CLASS_ERROR | (kind as u32) << 16 | subtype as u32)
    }

    /// An error of this type without subtype; for QUEUE_EMPTY that is [`DatReturn::QUEUE_EMPTY`].
    pub const fn new(kind: ReturnType) -> Self {
        match kind {
            ReturnType::QueueEmpty => Self::QUEUE_EMPTY,
            kind => Self::error(kind, Subtype::NoSubtype),
        }
    }

    /// The number as C sees it.
    pub const fn value(self) -> u32 {
        self.0
    }

    /// `DAT_GET_TYPE`, typed. None for a number that no provider gives.
    pub const fn kind(self) -> Option<ReturnType> {
        ReturnType::from_number(((self.0 & TYPE_MASK) >> 16) as u16)
    }

    /// `DAT_GET_SUBTYPE`, typed.
    pub const fn subtype(self) -> Option<Subtype> {
        Subtype::from_number((self.0 & SUBTYPE_MASK) as u16)
    }

    /// Whether the type is this one; the way portable consumers test.
    pub fn is(self, kind: ReturnType) -> bool {
        self.kind() == Some(kind)
    }

    /// `DAT_IS_WARNING`.
    pub const fn is_warning(self) -> bool {
        self.0 & CLASS_WARNING != 0
    }
}

/// `dat_strerror`: the names of type and subtype. Both are static text. `DAT_SUCCESS` is a code like the others.
///
/// # Errors
/// INVALID_PARAMETER for a number that no call gives.
pub fn strerror(code: u32) -> DatResult<(&'static str, &'static str)> {
    if code == 0 {
        return Ok(("DAT_SUCCESS", Subtype::NoSubtype.name()));
    }
    let code = DatReturn(code);
    match (code.kind(), code.subtype()) {
        (Some(kind), Some(subtype)) => Ok((kind.name(), subtype.name())),
        _ => Err(DatReturn::error(ReturnType::InvalidParameter, Subtype::InvalidArg1)),
    }
}

/// The same for C.
///
/// # Errors
/// INVALID_PARAMETER for a number that no call gives.
pub fn strerror_c(code: u32) -> DatResult<(&'static CStr, &'static CStr)> {
    if code == 0 {
        return Ok((c"DAT_SUCCESS", Subtype::NoSubtype.c_name()));
    }
    strerror(code)?;
    let code = DatReturn(code);
    let (kind, subtype) = (code.kind(), code.subtype());
    Ok((kind.map_or(c"", ReturnType::c_name), subtype.map_or(c"", Subtype::c_name)))
}

impl fmt::Debug for DatReturn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for DatReturn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match strerror(self.0) {
            Ok((kind, "DAT_NO_SUBTYPE")) => f.write_str(kind),
            Ok((kind, subtype)) => write!(f, "{kind} ({subtype})"),
            Err(_) => write!(f, "DAT_RETURN {:#010x}", self.0),
        }
    }
}

impl core::error::Error for DatReturn {}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    // The literals are those of the public DAT 1.2 headers.
    #[test]
    fn numbers() {
        assert_eq!(DatReturn::QUEUE_EMPTY.value(), 0x000d_0000);
        assert_eq!(DatReturn::new(ReturnType::QueueEmpty), DatReturn::QUEUE_EMPTY);
        assert_eq!(DatReturn::new(ReturnType::InvalidHandle).value(), 0x8005_0000);
        assert_eq!(
            DatReturn::error(ReturnType::InvalidState, Subtype::InvalidStateEpConnected).value(),
            0x8007_0032
        );
        assert_eq!(DatReturn::error(ReturnType::InvalidParameter, Subtype::InvalidArg1).value(), 0x8006_0024);
        assert_eq!(DatReturn::new(ReturnType::NotImplemented).value(), 0x8fff_0000);
        assert_eq!(Subtype::ThreadSafetyNotFound as u16, 101);
        assert_eq!(Subtype::InvalidHandle10 as u16, 35);
        assert_eq!(Subtype::ALL.len(), 102);
        for (number, subtype) in Subtype::ALL.iter().enumerate() {
            assert_eq!(*subtype as usize, number);
        }
    }

    #[test]
    fn taking_apart() {
        let code = DatReturn::error(ReturnType::InsufficientResources, Subtype::ResourceTevd);
        assert_eq!(code.kind(), Some(ReturnType::InsufficientResources));
        assert_eq!(code.subtype(), Some(Subtype::ResourceTevd));
        assert!(code.is(ReturnType::InsufficientResources));
        assert!(!code.is_warning());
        assert!(DatReturn::QUEUE_EMPTY.is(ReturnType::QueueEmpty));
    }

    #[test]
    fn names() {
        assert_eq!(strerror(0), Ok(("DAT_SUCCESS", "DAT_NO_SUBTYPE")));
        assert_eq!(strerror(0x8007_0032), Ok(("DAT_INVALID_STATE", "DAT_INVALID_STATE_EP_CONNECTED")));
        assert_eq!(strerror(0x8333_0000), Err(DatReturn(0x8006_0024)));
        assert_eq!(strerror_c(0x8333_0000), Err(DatReturn(0x8006_0024)));
        for code in [0, 0x8007_0032, 0x000d_0000] {
            let (kind, subtype) = strerror_c(code).unwrap();
            assert_eq!(strerror(code), Ok((kind.to_str().unwrap(), subtype.to_str().unwrap())));
        }
        assert_eq!(DatReturn::QUEUE_EMPTY.to_string(), "DAT_QUEUE_EMPTY");
        assert_eq!(DatReturn(0x8333_0000).to_string(), "DAT_RETURN 0x83330000");
    }
}
