//! Parts of an adapter: views of device, objects and progress, each with the methods of one subject.

use driver_mlx::Platform;

use crate::adapter::device::Device;
use crate::adapter::objects::Objects;
use crate::adapter::progress::Progress;

/// All parts of an adapter.
pub(crate) struct Parts<'a, 's, P: Platform> {
    pub(crate) device: &'a mut Device<'s, P>,
    pub(crate) objects: &'a mut Objects<'s, P::Bar>,
    pub(crate) progress: &'a mut Progress,
}

/// Defines a part that borrows device, objects and progress. Its fields are private to the module that defines it. The methods named
/// after it return the other parts that it uses.
macro_rules! part {
    ($(#[$doc:meta])* $name:ident $(, $method:ident: $part:ident)*) => {
        $(#[$doc])*
        pub(crate) struct $name<'a, 's, P: driver_mlx::Platform> {
            device: &'a mut $crate::adapter::device::Device<'s, P>,
            objects: &'a mut $crate::adapter::objects::Objects<'s, P::Bar>,
            progress: &'a mut $crate::adapter::progress::Progress,
        }

        impl<'a, 's, P: driver_mlx::Platform> $name<'a, 's, P> {
            pub(crate) fn new(
                device: &'a mut $crate::adapter::device::Device<'s, P>,
                objects: &'a mut $crate::adapter::objects::Objects<'s, P::Bar>,
                progress: &'a mut $crate::adapter::progress::Progress,
            ) -> Self {
                Self { device, objects, progress }
            }

            $(fn $method(&mut self) -> $part<'_, 's, P> {
                $part::new(self.device, self.objects, self.progress)
            })*

            /// The part that queues events.
            fn delivery(&mut self) -> $crate::evd::delivery::Delivery<'_, 's, P::Bar> {
                $crate::evd::delivery::Delivery::new(self.objects, self.progress)
            }
        }
    };
}
pub(crate) use part;
