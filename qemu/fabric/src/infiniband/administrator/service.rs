//! Services that ports announce (IBTA volume 1, section 15.2.5.14).

use ib_mgmt::mad::status;
use ib_mgmt::sa::ServiceRecord;

use super::query::{Query, SERVICE};
use super::subnet::{Records, Subnet};
use crate::ports::PortIndex;

/// Services that one port can have.
const SHARE: usize = 256;
/// A lease that never ends.
const FOR_EVER: u32 = u32::MAX;
const SECOND_NS: u64 = 1_000_000_000;

struct Service {
    record: ServiceRecord,
    port: PortIndex,
    /// When the lease ends.
    ends: Option<u64>,
}

/// All services.
#[derive(Default)]
pub(super) struct Services(Vec<Service>);

impl Services {
    fn tidy(&mut self, now: u64) {
        self.0.retain(|service| service.ends.is_none_or(|ends| ends > now));
    }

    /// A port is gone, and its services with it.
    pub(super) fn leave(&mut self, port: PortIndex) {
        self.0.retain(|service| service.port != port);
    }

    /// Announces a service, or renews its lease: id, GID and P_Key are its identity.
    pub(super) fn register(
        &mut self,
        subnet: &Subnet<'_>,
        from: PortIndex,
        query: &Query<'_>,
        now: u64,
    ) -> Records {
        self.tidy(now);
        let mut record = ServiceRecord::from_slice(&query.record()).unwrap_or_default();
        if !query.has(0) || !query.has(1) {
            return Err(status::SA_INSUFFICIENT_COMPONENTS);
        }
        let known =
            |port: &&crate::infiniband::PortRecord| port.active && port.gid() == Some(record.service_gid());
        let port = subnet.manager.record(from).filter(known);
        if port.is_none_or(|port| query.has(2) && !port.is_in_partition(record.service_pkey())) {
            return Err(status::SA_REQ_INVALID);
        }
        if !query.has(4) {
            record.set_service_lease(FOR_EVER);
        }
        let ends = match record.service_lease() {
            FOR_EVER => None,
            seconds => Some(now.saturating_add(u64::from(seconds) * SECOND_NS)),
        };
        let service = Service { record, port: from, ends };
        let full = self.0.iter().filter(|known| known.port == from).count() >= SHARE;
        match self.0.iter_mut().find(|known| is_same(&known.record, &record)) {
            Some(known) => *known = service,
            None if full => return Err(status::SA_NO_RESOURCES),
            None => self.0.push(service),
        }
        Ok(vec![record.as_bytes().to_vec()])
    }

    /// Withdraws a service: of the asker's own, or of anybody's for a trusted asker.
    pub(super) fn withdraw(
        &mut self,
        subnet: &Subnet<'_>,
        from: PortIndex,
        query: &Query<'_>,
        now: u64,
    ) -> Records {
        self.tidy(now);
        let trusted = subnet.is_trusted(query.sm_key());
        let found = self
            .0
            .iter()
            .position(|service| (trusted || service.port == from) && means(query, &service.record));
        let found = found.ok_or(status::SA_NO_RECORDS)?;
        Ok(vec![self.0.swap_remove(found).record.as_bytes().to_vec()])
    }

    pub(super) fn records(&mut self, query: &Query<'_>, now: u64) -> Vec<Vec<u8>> {
        self.tidy(now);
        let meant = self.0.iter().filter(|service| means(query, &service.record));
        meant.map(|service| service.record.as_bytes().to_vec()).collect()
    }
}

fn is_same(a: &ServiceRecord, b: &ServiceRecord) -> bool {
    (a.service_id(), a.service_gid(), a.service_pkey()) == (b.service_id(), b.service_gid(), b.service_pkey())
}

fn means(query: &Query<'_>, record: &ServiceRecord) -> bool {
    // The lease that is left is nobody's to ask for.
    query.means(SERVICE, record.as_bytes(), 1 << 4)
}
