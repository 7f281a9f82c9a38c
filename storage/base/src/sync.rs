//! Locks of what threads share. A panic under one of them ends whoever takes it next: what it guards may be half changed.
//!
//! Of a [`RwLock`] a thread must not have two guards: where a writer waits in between, `std` lets the second reader wait
//! for the writer, and the writer waits for the first. It happens once in a million times, so builds with debug
//! assertions refuse it each time.

use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard, RwLockReadGuard, RwLockWriteGuard};

use self::held::Held;

/// Locks a mutex.
#[track_caller]
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("a thread panicked under this lock")
}

/// Many readers or one writer; see the module.
#[derive(Debug, Default)]
#[expect(clippy::disallowed_types, reason = "this is what stands in for it")]
pub struct RwLock<T>(std::sync::RwLock<T>);

/// A reader's access. Hold it shortly.
#[derive(Debug)]
pub struct ReadGuard<'a, T> {
    guard: RwLockReadGuard<'a, T>,
    _held: Held,
}

/// The writer's access.
#[derive(Debug)]
pub struct WriteGuard<'a, T> {
    guard: RwLockWriteGuard<'a, T>,
    _held: Held,
}

impl<T> RwLock<T> {
    /// A lock of `value` that nobody holds.
    pub const fn new(value: T) -> Self {
        #[expect(clippy::disallowed_types, reason = "this is what stands in for it")]
        Self(std::sync::RwLock::new(value))
    }

    /// Waits for the writer, if there is one.
    #[track_caller]
    pub fn read(&self) -> ReadGuard<'_, T> {
        let _held = Held::note(self);
        ReadGuard { guard: self.0.read().expect("a thread panicked under this lock"), _held }
    }

    /// Waits for all others.
    #[track_caller]
    pub fn write(&self) -> WriteGuard<'_, T> {
        let _held = Held::note(self);
        WriteGuard { guard: self.0.write().expect("a thread panicked under this lock"), _held }
    }
}

impl<T> Deref for ReadGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> Deref for WriteGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> DerefMut for WriteGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

#[cfg(debug_assertions)]
mod held {
    use std::cell::RefCell;
    use std::panic::Location;

    thread_local! {
        /// Addresses of the locks that this thread holds, and where it took them.
        static HELD: RefCell<Vec<(usize, &'static Location<'static>)>> = const { RefCell::new(Vec::new()) };
    }

    /// That this thread holds a lock.
    #[derive(Debug)]
    pub(super) struct Held(usize);

    impl Held {
        #[track_caller]
        pub(super) fn note<T>(lock: &T) -> Self {
            let (address, here) = (std::ptr::from_ref(lock).addr(), Location::caller());
            let before = HELD.with_borrow_mut(|held| {
                let before = held.iter().find(|(held, _)| *held == address).map(|(_, at)| *at);
                held.extend(before.is_none().then_some((address, here)));
                before
            });
            if let Some(before) = before {
                panic!("{here} takes a lock that this thread took at {before} and holds");
            }
            Self(address)
        }
    }

    impl Drop for Held {
        fn drop(&mut self) {
            // A thread that ends has no list any more.
            let _gone = HELD.try_with(|held| held.borrow_mut().retain(|(lock, _)| *lock != self.0));
        }
    }
}

#[cfg(not(debug_assertions))]
mod held {
    /// Nothing.
    #[derive(Debug)]
    pub(super) struct Held;

    impl Held {
        #[inline(always)]
        pub(super) const fn note<T>(_: &T) -> Self {
            Self
        }
    }
}

#[cfg(test)]
mod tests;
