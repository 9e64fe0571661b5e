//! A list that comes object by object.

use super::{
    index::{Cut, Observed},
    usage::Usages,
};
use parking_lot::Mutex;

/// Objects of a list that has not ended. What is large of them is bounded together with what other lists have.
pub struct Listing<'u, K: Observed> {
    objects: Vec<Cut<K>>,
    usages: &'u Mutex<Usages>,
}

impl<'u, K: Observed> Listing<'u, K> {
    /// One without objects; `usages` are those of all lists.
    pub fn new(usages: &'u Mutex<Usages>) -> Self {
        Self { objects: Vec::new(), usages }
    }

    /// Takes an object in.
    pub fn push(&mut self, mut object: Cut<K>) {
        K::bound(&mut object.kept, &object.key.0, None, &mut self.usages.lock());
        self.objects.push(object);
    }

    /// Lets go of what will not be held, after each page of so many.
    pub fn thin(&mut self, page: usize) {
        if self.objects.len().is_multiple_of(page) {
            K::thin(&mut self.objects);
        }
    }

    /// All objects; the list begins again.
    pub fn take(&mut self) -> Vec<Cut<K>> {
        let mut usages = self.usages.lock();
        self.objects.iter().for_each(|object| K::unbound(&object.kept, &object.key.0, &mut usages));
        std::mem::take(&mut self.objects)
    }
}

impl<K: Observed> Drop for Listing<'_, K> {
    fn drop(&mut self) {
        self.take();
    }
}
