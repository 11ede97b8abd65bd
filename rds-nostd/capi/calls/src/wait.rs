//! Calls that wait.

use crate::failure::{Answer, Failure};
use crate::node::{Node, State};
use crate::socket::Descriptor;
use rds_nostd::{RdsError, SocketHandle};

/// Whether what was refused may come to pass.
fn may_pass(failure: Failure) -> bool {
    let Failure::Rds(error) = failure else { return false };
    matches!(error, RdsError::Again | RdsError::NoBufferSpace | RdsError::Congested)
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
