//! Parts of an adapter: views of device, objects and progress, each with the methods of one subject.

/// Defines a part that borrows device, objects and progress. Its fields are private to the module that defines it.
macro_rules! part {
    ($(#[$doc:meta])* $name:ident) => {
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

            /// The part that queues events.
            fn delivery(&mut self) -> $crate::evd::delivery::Delivery<'_, 's, P::Bar> {
                $crate::evd::delivery::Delivery::new(self.objects, self.progress)
            }
        }
    };
}
pub(crate) use part;
