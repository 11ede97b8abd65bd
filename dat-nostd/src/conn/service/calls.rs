//! Calls on service points: create, query, free.

use crate::base::states::{EpCall, EpEvent};
use driver_mlx::{Bar, Platform};
use ib_port::ib_mgmt::cm::ListenError;

use crate::adapter::Adapter;
use crate::adapter::objects::Objects;
use crate::base::attr::{PspParameters, RspParameters};
use crate::base::event::ServicePoint;
use crate::base::handle::{EpHandle, EvdHandle, HandleType, IaHandle, PspHandle, RspHandle, Typed};
use crate::base::ret::{DatResult, DatReturn, ReturnType, Subtype};
use crate::base::types::{EvdFlags, PspFlags};
use crate::conn::Connections;
use crate::conn::attempt::OWNER_PSP;
use crate::conn::framing::Framing;
use crate::conn::service::{EpSource, Psp, Rsp, Target};
use crate::evd::check_stream;

/// Bit of the CM's owner word that tells reserved service points from public ones.
const OWNER_RSP: u32 = 1 << 30;

/// Qualifiers that `psp_create_any` picks from: the dynamic ports.
const ANY_FIRST: u64 = 0xc000;

const ANY_COUNT: u64 = 0x4000;

impl<'s, P: Platform> Adapter<'s, P> {
    /// `dat_psp_create`. Requests arrive on `evd` until the service point is freed; when the EVD is full, they are refused.
    ///
    /// Under RDMA-CM names the qualifiers 1 to 65535 are TCP ports of RDMA-CM. Larger ones are
    /// InfiniBand service ids, except those of the ports (0x1060000 to 0x106ffff). Under names with
    /// a framing of ours every qualifier but 0 is a service id.
    ///
    /// # Errors
    /// INVALID_HANDLE (IA, EVD without the CR stream); INVALID_PARAMETER for a qualifier that names
    /// no service; CONN_QUAL_IN_USE; INSUFFICIENT_RESOURCES.
    pub fn psp_create(
        &mut self,
        ia: IaHandle,
        conn_qual: u64,
        evd: EvdHandle,
        flags: PspFlags,
    ) -> DatResult<PspHandle> {
        let mut connections = self.connections();
        let service_id = connections.check_service(ia, conn_qual, evd)?;
        connections.make_psp(ia, conn_qual, service_id, evd, flags)
    }

    /// `dat_psp_create_any`: the provider picks a qualifier among the dynamic ports, 49152 to 65535.
    ///
    /// # Errors
    /// As [`Adapter::psp_create`], with CONN_QUAL_UNAVAILABLE if all are taken.
    pub fn psp_create_any(
        &mut self,
        ia: IaHandle,
        evd: EvdHandle,
        flags: PspFlags,
    ) -> DatResult<(u64, PspHandle)> {
        let framing = self.objects().framing(ia)?;
        self.objects().check_cr_evd(ia, evd)?;
        self.device().usable()?;
        let first = self.device_mut().next_random();
        // Fewer listeners than qualifiers exist, so a free one comes soon or there is no room for a listener either.
        for step in 0..ANY_COUNT {
            let conn_qual = ANY_FIRST + first.wrapping_add(step) % ANY_COUNT;
            if let Some(service_id) = framing.service_id(conn_qual)
                && !self.device().cm().is_listening(service_id)
            {
                let psp = self.connections().make_psp(ia, conn_qual, service_id, evd, flags)?;
                return Ok((conn_qual, psp));
            }
        }
        Err(DatReturn::new(ReturnType::ConnQualUnavailable))
    }

    /// `dat_psp_query`.
    ///
    /// # Errors
    /// INVALID_HANDLE.
    pub fn psp_query(&self, psp: PspHandle) -> DatResult<PspParameters> {
        let psp = self.objects().get(psp)?;
        Ok(PspParameters { ia: psp.ia, conn_qual: psp.conn_qual, evd: psp.evd, psp_flags: psp.flags })
    }

    /// `dat_psp_free`. Requests already delivered stay valid and must be answered.
    ///
    /// # Errors
    /// INVALID_HANDLE.
    pub fn psp_free(&mut self, psp: PspHandle) -> DatResult<()> {
        let psp = self.objects_mut().remove(psp)?;
        self.device_mut().cm_mut().unlisten(psp.service_id);
        if let Ok(evd) = self.objects_mut().get_mut(psp.evd) {
            evd.count_user(0, None, false);
        }
        Ok(())
    }

    /// `dat_rsp_create`: a service point for one request, which finds `ep` reserved for it. Without an EP the provider makes one
    /// when the request comes.
    ///
    /// # Errors
    /// INVALID_HANDLE (IA, EP, EVD without the CR stream); INVALID_PARAMETER for a qualifier that names no service;
    /// INVALID_STATE unless the EP is unconnected; CONN_QUAL_IN_USE; INSUFFICIENT_RESOURCES.
    pub fn rsp_create(
        &mut self,
        ia: IaHandle,
        conn_qual: u64,
        ep: Option<EpHandle>,
        evd: EvdHandle,
    ) -> DatResult<RspHandle> {
        self.objects().get(ia)?;
        if let Some(ep) = ep {
            self.objects().get(ep).and_then(|ep| ep.ia().check(ia, HandleType::Ep))?;
        }
        let service_id = self.connections().check_service(ia, conn_qual, evd)?;
        if let Some(ep) = ep {
            EpCall::Reserve.in_state(self.objects().get(ep)?.state())?;
        }
        let rsp = Rsp { ia, conn_qual, service_id, evd, ep, used: false };
        let rsp = self
            .objects_mut()
            .table_mut::<RspHandle>()
            .insert(rsp)
            .map_err(|_| DatReturn::new(ReturnType::InsufficientResources))?;
        let owner = OWNER_PSP | OWNER_RSP | u32::from(rsp.any().slot());
        if let Err(error) = self.connections().listen(service_id, owner, 1) {
            let _ = self.objects_mut().remove(rsp);
            return Err(error);
        }
        self.objects_mut().get_mut(evd)?.count_user(0, None, true);
        if let Some(ep) = ep {
            self.objects_mut().move_ep(ep, EpEvent::Reserved);
        }
        Ok(rsp)
    }

    /// `dat_rsp_query`.
    ///
    /// # Errors
    /// INVALID_HANDLE.
    pub fn rsp_query(&self, rsp: RspHandle) -> DatResult<RspParameters> {
        let rsp = self.objects().get(rsp)?;
        Ok(RspParameters { ia: rsp.ia, conn_qual: rsp.conn_qual, evd: rsp.evd, ep: rsp.ep })
    }

    /// `dat_rsp_free`: the EP is unconnected again, unless its request has come: that must still be answered.
    ///
    /// # Errors
    /// INVALID_HANDLE.
    pub fn rsp_free(&mut self, rsp: RspHandle) -> DatResult<()> {
        let rsp = self.objects_mut().remove(rsp)?;
        if !rsp.used {
            self.device_mut().cm_mut().unlisten(rsp.service_id);
            if let Some(ep) = rsp.ep {
                self.objects_mut().move_ep(ep, EpEvent::Released);
            }
        }
        if let Ok(evd) = self.objects_mut().get_mut(rsp.evd) {
            evd.count_user(0, None, false);
        }
        Ok(())
    }
}

impl<P: Platform> Connections<'_, '_, P> {
    /// Checks what every service point requires. Returns the service id.
    fn check_service(&mut self, ia: IaHandle, conn_qual: u64, evd: EvdHandle) -> DatResult<u64> {
        let framing = self.objects.framing(ia)?;
        self.objects.check_cr_evd(ia, evd)?;
        let Some(service_id) = framing.service_id(conn_qual) else {
            return Err(DatReturn::error(ReturnType::InvalidParameter, Subtype::InvalidArg2));
        };
        if self.device.cm().is_listening(service_id) {
            return Err(DatReturn::new(ReturnType::ConnQualInUse));
        }
        self.device.usable()?;
        Ok(service_id)
    }

    fn make_psp(
        &mut self,
        ia: IaHandle,
        conn_qual: u64,
        service_id: u64,
        evd: EvdHandle,
        flags: PspFlags,
    ) -> DatResult<PspHandle> {
        const FULL: DatReturn = DatReturn::new(ReturnType::InsufficientResources);
        let backlog = self.objects.get(evd)?.event_limit().min(u32::from(u16::MAX)) as u16;
        let psp = self
            .objects
            .table_mut::<PspHandle>()
            .insert(Psp { ia, conn_qual, service_id, evd, flags })
            .map_err(|_| FULL)?;
        if let Err(error) = self.listen(service_id, OWNER_PSP | u32::from(psp.any().slot()), backlog) {
            let _ = self.objects.remove(psp);
            return Err(error);
        }
        self.objects.get_mut(evd)?.count_user(0, None, true);
        Ok(psp)
    }

    fn listen(&mut self, service_id: u64, owner: u32, backlog: u16) -> DatResult<()> {
        self.device.cm_mut().listen(service_id, owner, backlog).map_err(|error| match error {
            ListenError::InUse => DatReturn::new(ReturnType::ConnQualInUse),
            ListenError::Full => DatReturn::new(ReturnType::InsufficientResources),
        })
    }

    /// A service point has given a request to its consumer: a reserved one has done its duty.
    pub(in crate::conn) fn target_used(&mut self, target: &Target) {
        let ServicePoint::Rsp(rsp) = target.sp else { return };
        if let Ok(rsp) = self.objects.get_mut(rsp) {
            rsp.used = true;
            self.device.cm_mut().unlisten(target.service_id);
        }
    }
}

impl<B: Bar> Objects<'_, B> {
    /// The IA's form of CM messages.
    pub(crate) fn framing(&self, ia: IaHandle) -> DatResult<Framing> {
        Ok(self.get(ia)?.framing())
    }

    /// Whether an EVD of this IA takes requests.
    fn check_cr_evd(&self, ia: IaHandle, evd: EvdHandle) -> DatResult<()> {
        check_stream(self.table(), Some(ia), Some(evd), EvdFlags::CR, Subtype::InvalidHandleEvdCr)
    }

    /// The service point that the CM's owner word names, if it takes requests.
    pub(crate) fn target_of(&self, owner: u32) -> Option<Target> {
        let slot = owner as u16;
        if owner & OWNER_RSP != 0 { self.rsp_target(slot) } else { self.psp_target(slot) }
    }

    fn psp_target(&self, slot: u16) -> Option<Target> {
        let psp = self.table::<PspHandle>().at(slot)?;
        Some(Target {
            sp: ServicePoint::Psp(self.table::<PspHandle>().handle_at(slot)?),
            ia: psp.ia,
            conn_qual: psp.conn_qual,
            service_id: psp.service_id,
            evd: psp.evd,
            source: match psp.flags {
                PspFlags::Consumer => EpSource::Consumer,
                PspFlags::Provider => EpSource::Provider,
            },
        })
    }

    fn rsp_target(&self, slot: u16) -> Option<Target> {
        let rsp = self.table::<RspHandle>().at(slot).filter(|rsp| !rsp.used)?;
        Some(Target {
            sp: ServicePoint::Rsp(self.table::<RspHandle>().handle_at(slot)?),
            ia: rsp.ia,
            conn_qual: rsp.conn_qual,
            service_id: rsp.service_id,
            evd: rsp.evd,
            source: rsp.ep.map_or(EpSource::Provider, EpSource::Reserved),
        })
    }

    /// The service point of an IA that owns a qualifier and takes requests.
    pub(crate) fn target_for(&self, ia: IaHandle, conn_qual: u64) -> Option<Target> {
        let psps = self.table::<PspHandle>().slots().filter_map(|slot| self.psp_target(slot));
        let rsps = self.table::<RspHandle>().slots().filter_map(|slot| self.rsp_target(slot));
        psps.chain(rsps).find(|target| target.ia == ia && target.conn_qual == conn_qual)
    }
}
