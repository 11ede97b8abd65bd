//! Calls that wait.

use crate::failure::{Answer, Failure};
use crate::node::{Node, State};
use crate::socket::Descriptor;
use dat_nostd::{Adapter, Duration, Platform};
use rds_nostd::{Rds, RdsError, SocketHandle};

/// Whether what was refused may come to pass.
fn may_pass(failure: Failure) -> bool {
    let Failure::Rds(error) = failure else { return false };
    matches!(error, RdsError::Again | RdsError::NoBufferSpace | RdsError::Congested)
}

/// Time between two polls of [`finish`].
const APART: Duration = Duration::from_micros(1);
/// Limit of [`finish`]: the protocol breaks a connection after 100 ms without completions.
const LIMIT: Duration = Duration::from_secs(1);

/// Repeats a call while memory of the socket is in use: C programs free it after the call. The lock
/// stays taken, because these waits last microseconds unless the peer is unresponsive.
///
/// # Errors
/// See `call`. [`RdsError::Again`]: the HCA has failed.
pub(crate) fn finish<P: Platform + 'static>(
    rds: &mut Rds<'static>,
    adapter: &mut Adapter<'static, P>,
    mut call: impl FnMut(&mut Rds<'static>, &mut Adapter<'static, P>) -> Result<(), RdsError>,
) -> Result<(), RdsError> {
    let until = adapter.now() + LIMIT;
    loop {
        let done = call(rds, adapter);
        let now = adapter.now();
        if done != Err(RdsError::Again) || adapter.is_dead() || now >= until {
            return done;
        }
        let _ = adapter.poll(now);
        let _ = rds.poll(adapter, now);
        adapter.idle(now + APART);
    }
}

/// Makes a call on a socket; again and again until it succeeds, unless the call or the socket says not to wait.
pub(crate) fn until<N: Node, R>(
    node: &N,
    fd: i32,
    dont_wait: bool,
    mut call: impl FnMut(&mut State<'_, N>, SocketHandle) -> Answer<R>,
) -> Answer<R> {
    let mut guard = node.lock().ok_or(RdsError::BadSocket)?;
    let mut socket = N::resumed();
    loop {
        let mut state = N::state(&mut guard);
        let handle = state.socket(fd)?.handle;
        // Another socket may have got the number of one that was closed meanwhile.
        let is_first = socket.is_none();
        if *socket.get_or_insert(handle) != handle {
            return Err(RdsError::BadSocket.into());
        }
        let answer = call(&mut state, handle).map_err(|failure| match state.usable() {
            Err(gone) if may_pass(failure) => gone.into(),
            _ => state.why(failure),
        });
        let waits = match &answer {
            Err(failure) => {
                may_pass(*failure) && !dont_wait && !state.socket(fd)?.descriptor.is_nonblocking()
            }
            Ok(_) => false,
        };
        if !waits {
            state.look(fd);
            node.changed(guard);
            return answer;
        }
        if is_first {
            // Once: what has failed again has left nothing more to move on.
            node.changed(guard);
            guard = node.lock().ok_or(RdsError::BadSocket)?;
            continue;
        }
        let now = state.adapter.now();
        guard = node.sleep(guard, handle, now)?;
    }
}
