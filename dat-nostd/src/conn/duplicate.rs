//! `dat_ep_dup_connect`: another connection to where an endpoint is connected already. DAT 1.2, connection management.

use crate::base::states::EpCall;
use driver_mlx::Platform;

use crate::adapter::Adapter;
use crate::base::handle::EpHandle;
use crate::base::ret::{DatResult, DatReturn, ReturnType, Subtype};
use crate::base::types::{ConnectFlags, Qos};
use crate::conn::connection::Ends;

impl<'s, P: Platform> Adapter<'s, P> {
    /// `dat_ep_dup_connect`: connects `ep` to the address and qualifier that `dup_ep` is connected to, as `ep_connect` does.
    ///
    /// # Errors
    /// INVALID_HANDLE; INVALID_STATE unless `ep` is unconnected, with protection zone and connect EVD, and `dup_ep` connected;
    /// INVALID_PARAMETER (time-out, private data); MODEL_NOT_SUPPORTED (quality of service).
    pub fn ep_dup_connect(
        &mut self,
        ep: EpHandle,
        dup_ep: EpHandle,
        timeout_us: u32,
        private_data: &[u8],
        qos: Qos,
    ) -> DatResult<()> {
        let state = self.objects().get(ep)?.state();
        let pattern = self.objects().get(dup_ep)?;
        EpCall::DupConnect.in_state(state)?;
        EpCall::DupSource.in_state(pattern.state())?;
        let bad = |argument| DatReturn::error(ReturnType::InvalidParameter, argument);
        let Ends { remote_address: remote, remote_port: conn_qual, .. } = pattern.connection().ends();
        self.ep_connect(ep, &remote, conn_qual, timeout_us, private_data, qos, ConnectFlags::Default)
            // The arguments of this call have other numbers.
            .map_err(|error| match error.subtype() {
                Some(Subtype::InvalidArg4) if error.is(ReturnType::InvalidParameter) => {
                    bad(Subtype::InvalidArg3)
                }
                Some(Subtype::InvalidArg5) if error.is(ReturnType::InvalidParameter) => {
                    bad(Subtype::InvalidArg4)
                }
                _ => error,
            })
    }
}
