//! Doorbell records taken and given back.

use super::Hca;
use super::record_pages::{FIRST, PAGE_RUNS, RECORD, RecordPages};
use crate::buddy::BLOCK;
use crate::dma::DmaMemory;
use crate::error::Error;
use crate::platform::Platform;

impl<P: Platform> Hca<'_, P> {
    /// Takes a doorbell record.
    pub(super) fn take_record(&mut self) -> Result<DmaMemory, Error> {
        for index in 0..PAGE_RUNS {
            if self.records.runs.get(index).is_some_and(Option::is_none) {
                let memory = self.take_memory(BLOCK << index, BLOCK)?;
                let Some(marks) = self.host.alloc(RecordPages::slots_for(FIRST << index)) else {
                    self.release(memory)?;
                    return Err(Error::OutOfHostMemory { bytes: FIRST << index >> 3 });
                };
                if let Some(place) = self.records.runs.get_mut(index) {
                    *place = Some(RecordPages { memory, marks, count: 0 });
                }
            }
            let run = self.records.runs.get_mut(index).and_then(Option::as_mut);
            if let Some(record) = run.and_then(RecordPages::take) {
                return Ok(record);
            }
        }
        Err(Error::OutOfMemory { bytes: RECORD })
    }

    /// Gives a doorbell record back.
    pub(super) fn give_record(&mut self, record: DmaMemory) -> Result<(), Error> {
        for place in &mut self.records.runs {
            let Some(run) = place.as_mut().filter(|run| run.memory.contains(&record)) else { continue };
            run.flip((record.va() - run.memory.va()) / RECORD);
            run.count -= 1;
            return self.give_empty_runs();
        }
        Err(Error::NotAllocated)
    }

    /// Records of queues that could not be destroyed are free: the device has forgotten them.
    pub(super) fn find_lost_records(&mut self) -> Result<(), Error> {
        self.records.runs.iter_mut().flatten().for_each(RecordPages::find_lost);
        self.give_empty_runs()
    }

    fn give_empty_runs(&mut self) -> Result<(), Error> {
        for index in 0..PAGE_RUNS {
            let empty = |run: &mut RecordPages| run.count == 0;
            let run = self.records.runs.get_mut(index).and_then(|place| place.take_if(empty));
            if let Some(RecordPages { memory, marks, .. }) = run {
                self.host.free(marks);
                self.release(memory)?;
            }
        }
        Ok(())
    }

    /// Gives a doorbell record back, or keeps it taken if destroying its queue did not succeed.
    pub(super) fn give_record_unless(&mut self, destroyed: &Result<(), Error>, record: DmaMemory) {
        if destroyed.is_ok() && self.give_record(record).is_ok() {
            return;
        }
        self.leak(record);
        let mut runs = self.records.runs.iter_mut().flatten();
        if let Some(run) = runs.find(|run| run.memory.contains(&record)) {
            run.lose((record.va() - run.memory.va()) / RECORD);
        }
    }
}
