//! One open step: what is known of it until it is accounted for.

use crate::phases::Phase;
use crate::quantity::{Amounts, Quantity};
use crate::step::{Count, Fields};
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use crate::table::{FREE, Keyed, RESERVED};

/// Closed, and left to the holder of the engine's baton.
pub(crate) const LEFT: u64 = RESERVED;

/// One step. Two cache lines, so that threads with neighbouring slots don't disturb each other.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Slot {
    pub(crate) key: AtomicU64,
    /// Enters in the lower half, exits in the upper: see [`Visits`].
    visits: AtomicU64,
    pub(crate) engine: AtomicU32,
    pub(crate) callsite: AtomicU32,
    present: AtomicU32,
    values: [AtomicU32; Count::COUNT],
    /// How many values were refused, and how often an identity came too late: see [`Misuses`].
    misuses: AtomicU64,
    /// The engine's generation when nobody was left inside the step: see [`LeftAt`].
    left_at: AtomicU64,
    /// What a collection has taken of the step before it closed; meaningless unless `left_at` says so.
    taken: [AtomicU32; Quantity::COUNT],
    /// The step that was left before this one.
    pub(crate) next: AtomicU32,
    /// The tick of the first enter, if there was one.
    started: AtomicU64,
    /// The tick of the last exit, if there was one.
    ended: AtomicU64,
    /// What its phases took, in ticks.
    phases: [AtomicU64; Phase::COUNT],
}

impl Keyed for Slot {
    #[inline]
    fn key(&self) -> &AtomicU64 {
        &self.key
    }
}

/// What was wrong with the values of a step's fields.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Misuses {
    pub(crate) invalid: u32,
    pub(crate) late_identity: u32,
}

impl Misuses {
    #[inline]
    const fn packed(self) -> u64 {
        self.invalid as u64 | (self.late_identity as u64) << 32
    }

    #[inline]
    const fn unpacked(packed: u64) -> Self {
        Self { invalid: packed as u32, late_identity: (packed >> 32) as u32 }
    }
}

/// How often a step was entered and exited.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Visits(u64);

impl Visits {
    const ENTER: u64 = 1;
    const EXIT: u64 = 1 << 32;

    pub(crate) const fn ever_entered(self) -> bool {
        self.0 as u32 != 0
    }

    const fn ever_exited(self) -> bool {
        self.0 >= Self::EXIT
    }

    /// How many enters have not been exited.
    pub(crate) const fn inside(self) -> u32 {
        (self.0 as u32).wrapping_sub((self.0 >> 32) as u32)
    }
}

/// What has become of a step that was left before a copy started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Since {
    /// It is over, and not accounted for.
    Over,
    EnteredAgain,
}

/// How many collections its engine had started when a step was left, so that a collection knows which steps it follows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LeftAt(u64);

impl LeftAt {
    /// A collection has taken the step's fields before the step closed.
    const TAKEN: u64 = 1 << 63;
    /// The slot's step is being set aside.
    const MOVED: u64 = u64::MAX;

    /// Whether the step was left before the copy of this generation started.
    #[inline]
    pub(crate) const fn before(self, generation: u64) -> bool {
        self.0 & !Self::TAKEN < generation
    }

    const fn is_moved(self) -> bool {
        self.0 == Self::MOVED
    }
}

impl Slot {
    pub(crate) fn vacant() -> Self {
        Self {
            key: AtomicU64::new(FREE),
            visits: AtomicU64::new(0),
            engine: AtomicU32::new(0),
            callsite: AtomicU32::new(0),
            present: AtomicU32::new(0),
            values: std::array::from_fn(|_| AtomicU32::new(0)),
            misuses: AtomicU64::new(0),
            left_at: AtomicU64::new(0),
            taken: std::array::from_fn(|_| AtomicU32::new(0)),
            next: AtomicU32::new(0),
            started: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            phases: std::array::from_fn(|_| AtomicU64::new(0)),
        }
    }

    /// What a step begins with, but for what [`NewStep::open`] stores.
    #[inline]
    pub(crate) fn reset(&self) {
        self.visits.store(0, Ordering::Relaxed);
        self.left_at.store(0, Ordering::Relaxed);
        for ticks in &self.phases {
            ticks.store(0, Ordering::Relaxed);
        }
        // The others are looked at only where they are present.
        for value in self.values.iter().take(Count::READ_WHEN_ABSENT) {
            value.store(0, Ordering::Relaxed);
        }
    }

    /// The id of the step's span.
    pub(crate) fn id(&self) -> u64 {
        self.key.load(Ordering::Relaxed)
    }

    /// Whether its step is closed, and left to the holder of its engine's baton.
    pub(crate) fn is_left(&self) -> bool {
        self.key.load(Ordering::Acquire) == LEFT
    }

    /// Makes the slot free for another step.
    #[inline]
    pub(crate) fn free(&self) {
        self.key.store(FREE, Ordering::Release);
    }

    /// Enters the step; the visits before.
    #[inline]
    pub(crate) fn enter(&self) -> Visits {
        Visits(self.visits.fetch_add(Visits::ENTER, Ordering::SeqCst))
    }

    /// Notes how many copies the engine had started when the step was left.
    #[inline]
    pub(crate) fn leave_at(&self, generation: u64) {
        // What the holder of the baton notes here meanwhile is above any generation, and stays.
        self.left_at.fetch_max(generation, Ordering::Relaxed);
    }

    /// Exits the step; the visits after.
    #[inline]
    pub(crate) fn exit(&self) -> Visits {
        Visits(self.visits.fetch_add(Visits::EXIT, Ordering::AcqRel).wrapping_add(Visits::EXIT))
    }

    /// The step was entered for the first time.
    #[inline]
    pub(crate) fn start_at(&self, now: u64) {
        self.started.store(now, Ordering::Relaxed);
    }

    /// The tick of the first enter.
    pub(crate) fn started(&self) -> u64 {
        self.started.load(Ordering::Relaxed)
    }

    pub(crate) fn has_begun_by(&self, tick: u64) -> bool {
        self.visits().ever_entered() && self.started() <= tick
    }

    /// Exits the step. If nobody is left inside, perhaps for good, it has ended: says when. The clock is read then and not
    /// before, since of two threads that exit at once the first may be late with what it read.
    #[inline]
    pub(crate) fn exit_and_end(&self, now: impl FnOnce() -> u64) -> Option<u64> {
        (self.exit().inside() == 0).then(|| {
            let now = now();
            self.ended.store(now, Ordering::Relaxed);
            now
        })
    }

    /// Ticks from the first enter to the last exit; 0 for a step that was never entered.
    #[inline]
    pub(crate) fn took(&self) -> u64 {
        if self.visits().ever_entered() {
            self.ended.load(Ordering::Relaxed).saturating_sub(self.started.load(Ordering::Relaxed))
        } else {
            0
        }
    }

    /// A phase of the step has ended.
    pub(crate) fn add_phase(&self, phase: Phase, ticks: u64) {
        self.phases[phase as usize].fetch_add(ticks, Ordering::Relaxed);
    }

    /// What its phases took, in ticks.
    #[inline]
    pub(crate) fn phases(&self) -> [u64; Phase::COUNT] {
        [&self.phases[0], &self.phases[1]].map(|ticks| ticks.load(Ordering::Relaxed))
    }

    #[inline]
    pub(crate) fn visits(&self) -> Visits {
        Visits(self.visits.load(Ordering::SeqCst))
    }

    #[inline]
    pub(crate) fn left_at(&self) -> LeftAt {
        LeftAt(self.left_at.load(Ordering::Relaxed))
    }

    /// What has become of the step, if it was left before the copy of this generation started: the copy counts on its
    /// being over. One that is being set aside may have been.
    #[inline]
    pub(crate) fn since(&self, generation: u64) -> Option<Since> {
        let (visits, left_at) = (self.visits(), self.left_at());
        let was_left = visits.ever_exited() && left_at.before(generation);
        match visits.inside() {
            0 => (was_left || left_at.is_moved()).then_some(Since::Over),
            _ => was_left.then_some(Since::EnteredAgain),
        }
    }

    /// Takes the fields of a step that does not close, as they are; false if it is just closing, or was taken before.
    ///
    /// For the holder of the engine's baton.
    pub(crate) fn take(&self, amounts: &Amounts) -> bool {
        if self.is_taken() {
            return false;
        }
        for (quantity, taken) in Quantity::ALL.into_iter().zip(&self.taken) {
            taken.store(u32::try_from(amounts.get(quantity)).unwrap_or(u32::MAX), Ordering::Relaxed);
        }
        let left_at = self.left_at.load(Ordering::Relaxed);
        left_at & LeftAt::TAKEN == 0
            && self
                .left_at
                .compare_exchange(left_at, left_at | LeftAt::TAKEN, Ordering::Release, Ordering::Relaxed)
                .is_ok()
    }

    /// Whether its fields were taken before it closed.
    #[inline]
    pub(crate) fn is_taken(&self) -> bool {
        self.left_at.load(Ordering::Acquire) & LeftAt::TAKEN != 0
    }

    /// What was taken of the step before it closed.
    #[inline]
    pub(crate) fn taken(&self) -> Amounts {
        if !self.is_taken() {
            return Amounts::default();
        }
        Amounts::from_fn(|quantity| u64::from(self.taken[quantity as usize].load(Ordering::Relaxed)))
    }

    #[inline]
    pub(crate) fn fields(&self) -> Fields {
        let mut values = [0; Count::READ_WHEN_ABSENT];
        for (value, stored) in values.iter_mut().zip(&self.values) {
            *value = stored.load(Ordering::Relaxed);
        }
        Fields::new(self.present.load(Ordering::Relaxed), values)
    }

    /// Records a number over what there is.
    #[inline]
    pub(crate) fn set(&self, index: usize, value: u32) {
        if let Some(stored) = self.values.get(index) {
            stored.store(value, Ordering::Relaxed);
            self.present.fetch_or(1 << index, Ordering::Relaxed);
        }
    }

    /// Makes a number absent.
    pub(crate) fn clear(&self, index: usize) {
        if let Some(stored) = self.values.get(index) {
            self.present.fetch_and(!(1 << index), Ordering::Relaxed);
            stored.store(0, Ordering::Relaxed);
        }
    }

    /// A number that is looked at only where it is present.
    #[inline]
    pub(crate) fn given(&self, count: Count) -> Option<u64> {
        let is_given = self.present.load(Ordering::Relaxed) & 1 << count as u32 != 0;
        is_given.then(|| self.values[count as usize].load(Ordering::Relaxed).into())
    }

    #[inline]
    pub(crate) fn misuses(&self) -> Misuses {
        Misuses::unpacked(self.misuses.load(Ordering::Relaxed))
    }

    #[cold]
    pub(crate) fn misused(&self, more: Misuses) {
        self.misuses.fetch_add(more.packed(), Ordering::Relaxed);
        self.present.fetch_or(Fields::MISUSED, Ordering::Relaxed);
    }

    pub(crate) fn copy_from(&self, other: &Self) {
        let copy = |to: &AtomicU32, from: &AtomicU32| to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        self.visits.store(other.visits.load(Ordering::Relaxed), Ordering::Relaxed);
        copy(&self.engine, &other.engine);
        copy(&self.callsite, &other.callsite);
        copy(&self.present, &other.present);
        self.misuses.store(other.misuses.load(Ordering::Relaxed), Ordering::Relaxed);
        // What is taken from here on would be taken twice.
        self.left_at.store(other.left_at.swap(LeftAt::MOVED, Ordering::AcqRel), Ordering::Relaxed);
        self.values.iter().zip(&other.values).for_each(|(to, from)| copy(to, from));
        self.taken.iter().zip(&other.taken).for_each(|(to, from)| copy(to, from));
        let copy = |to: &AtomicU64, from: &AtomicU64| to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        copy(&self.started, &other.started);
        copy(&self.ended, &other.ended);
        self.phases.iter().zip(&other.phases).for_each(|(to, from)| copy(to, from));
    }
}

/// A new step's slot, not visible before [`OpenSteps::open`].
#[derive(Debug)]
pub(crate) struct NewStep<'a> {
    slot: &'a Slot,
    id: u64,
    present: u32,
}

impl<'a> NewStep<'a> {
    /// The step with this span id, in a slot claimed for it.
    #[inline]
    pub(crate) const fn new(slot: &'a Slot, id: u64) -> Self {
        Self { slot, id, present: 0 }
    }

    /// Sets a number.
    #[inline]
    pub(crate) fn set(&mut self, index: usize, value: u32) {
        if let Some(stored) = self.slot.values.get(index) {
            stored.store(value, Ordering::Relaxed);
            self.present |= 1 << index;
        }
    }

    /// Makes the step visible.
    #[inline]
    pub(crate) fn open(&self, engine: u32, callsite: u32, invalid: u32) {
        let slot = self.slot;
        slot.engine.store(engine, Ordering::Relaxed);
        slot.callsite.store(callsite, Ordering::Relaxed);
        let misused = if invalid > 0 { Fields::MISUSED } else { 0 };
        slot.present.store(self.present | misused, Ordering::Relaxed);
        slot.misuses.store(Misuses { invalid, late_identity: 0 }.packed(), Ordering::Relaxed);
        slot.key.store(self.id, Ordering::Release);
    }

    /// Gives the slot back: the step is not counted.
    #[cold]
    pub(crate) fn abandon(&self) {
        self.slot.free();
    }
}
