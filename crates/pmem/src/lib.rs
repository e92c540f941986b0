//! Temporary minimal pmem.
#![allow(missing_docs, clippy::all)]
use std::marker::PhantomData;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use rustix::fd::OwnedFd;
use zerocopy::{FromBytes, Immutable, IntoBytes};

pub const LINE_BYTES: u64 = 64;
pub const BLOCK_BYTES: u64 = 4096;
pub enum Dirty {}
pub struct InFlight(#[allow(dead_code)] PhantomData<*const ()>);
pub enum Clean {}
#[must_use]
pub struct Pm<'r, T: ?Sized, S> { region: &'r Region, offset: u64, len: u64, _s: PhantomData<(S, fn() -> Box<T>)> }
pub struct PmPtr<T: ?Sized> { offset: u64, _t: PhantomData<fn() -> Box<T>> }
impl<T: ?Sized> PmPtr<T> { pub fn offset(&self) -> u64 { self.offset } }
#[derive(Default)]
#[must_use]
pub struct Flight(PhantomData<*const ()>);
#[must_use]
pub struct Landed(());
impl Flight { pub fn new() -> Flight { Flight(PhantomData) } pub fn add<T: ?Sized>(&mut self, _p: Pm<'_, T, InFlight>) {} }
pub trait Group { type Clean; fn land(self) -> Self::Clean; }
impl Group for Flight { type Clean = Landed; fn land(self) -> Landed { Landed(()) } }
impl<'r, T: ?Sized> Group for Pm<'r, T, InFlight> { type Clean = Pm<'r, T, Clean>; fn land(self) -> Self::Clean { Pm { region: self.region, offset: self.offset, len: self.len, _s: PhantomData } } }
impl<'r, T: ?Sized> Pm<'r, T, Dirty> { pub fn flush(self) -> Pm<'r, T, InFlight> { Pm { region: self.region, offset: self.offset, len: self.len, _s: PhantomData } } }
impl<'r, T: ?Sized> Pm<'r, T, Clean> { pub fn ptr(&self) -> PmPtr<T> { PmPtr { offset: self.offset, _t: PhantomData } } }
#[derive(Clone, Debug)]
pub enum DeviceSpec { Path(PathBuf), Memory }
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PersistenceLevel { Dax, Memory, File }
#[derive(Default, Clone)]
pub struct OpenOptions { pub read_only: bool }
#[derive(Debug, thiserror::Error)]
pub enum PmemError { #[error("{0}")] Io(#[from] std::io::Error) }
impl PmemError { pub fn errno(&self) -> i32 { 5 } }
impl From<rustix::io::Errno> for PmemError { fn from(e: rustix::io::Errno) -> Self { PmemError::Io(e.into()) } }
struct Map { base: *mut u8, len: u64, fd: OwnedFd, level: PersistenceLevel, ro: bool }
unsafe impl Send for Map {}
unsafe impl Sync for Map {}
#[derive(Clone)]
pub struct Region(Arc<Map>);
impl Region {
    pub fn create(spec: &DeviceSpec, size: u64, o: &OpenOptions) -> Result<Region, PmemError> {
        let fd: OwnedFd = match spec { DeviceSpec::Memory => rustix::fs::memfd_create("nvfold", rustix::fs::MemfdFlags::CLOEXEC)?, DeviceSpec::Path(p) => std::fs::OpenOptions::new().read(true).write(true).create(true).open(p)?.into() };
        rustix::fs::ftruncate(&fd, size)?;
        Self::map(fd, size, spec, o)
    }
    pub fn open(spec: &DeviceSpec, o: &OpenOptions) -> Result<Region, PmemError> {
        let DeviceSpec::Path(p) = spec else { return Err(std::io::Error::other("mem: needs a size").into()) };
        let f = std::fs::OpenOptions::new().read(true).write(!o.read_only).open(p)?;
        let len = f.metadata()?.len();
        Self::map(f.into(), len, spec, o)
    }
    fn map(fd: OwnedFd, len: u64, spec: &DeviceSpec, o: &OpenOptions) -> Result<Region, PmemError> {
        let level = match spec { DeviceSpec::Memory => PersistenceLevel::Memory, DeviceSpec::Path(p) if p.starts_with("/dev/shm") => PersistenceLevel::Memory, _ => PersistenceLevel::File };
        let prot = if o.read_only { rustix::mm::ProtFlags::READ } else { rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE };
        let base = unsafe { rustix::mm::mmap(std::ptr::null_mut(), len as usize, prot, rustix::mm::MapFlags::SHARED, &fd, 0)? } as *mut u8;
        Ok(Region(Arc::new(Map { base, len, fd, level, ro: o.read_only })))
    }
    pub fn len_bytes(&self) -> u64 { self.0.len }
    pub fn level(&self) -> PersistenceLevel { self.0.level }
    pub fn is_read_only(&self) -> bool { self.0.ro }
    pub fn contains(&self, o: u64, l: u64) -> bool { o.checked_add(l).is_some_and(|e| e <= self.0.len) }
    fn at(&self, o: u64, l: u64) -> *mut u8 { assert!(self.contains(o, l), "{o:#x}+{l}"); unsafe { self.0.base.add(o as usize) } }
    pub fn read<T: FromBytes>(&self, o: u64) -> T { let p = self.at(o, size_of::<T>() as u64); unsafe { std::ptr::read_unaligned(p as *const T) } }
    pub fn read_into(&self, o: u64, d: &mut [u8]) { let p = self.at(o, d.len() as u64); unsafe { std::ptr::copy_nonoverlapping(p, d.as_mut_ptr(), d.len()) } }
    pub fn bytes(&self, o: u64, l: u64) -> &[u8] { let p = self.at(o, l); unsafe { std::slice::from_raw_parts(p, l as usize) } }
    pub fn equal(&self, o: u64, d: &[u8]) -> bool { self.bytes(o, d.len() as u64) == d }
    pub fn load_u64(&self, o: u64) -> u64 { self.read(o) }
    pub fn load_u128(&self, o: u64) -> u128 { self.read(o) }
    fn pm<T: ?Sized, S>(&self, offset: u64, len: u64) -> Pm<'_, T, S> { Pm { region: self, offset, len, _s: PhantomData } }
    pub fn write<T: IntoBytes + Immutable + ?Sized>(&self, o: u64, v: &T) -> Pm<'_, T, Dirty> { let b = v.as_bytes(); let p = self.at(o, b.len() as u64); unsafe { std::ptr::copy_nonoverlapping(b.as_ptr(), p, b.len()) }; self.pm(o, b.len() as u64) }
    pub fn stream(&self, o: u64, d: &[u8]) -> Pm<'_, [u8], InFlight> { let _ = self.write(o, d); self.pm(o, d.len() as u64) }
    pub fn stream_zeros(&self, o: u64, l: u64) -> Pm<'_, [u8], InFlight> { let p = self.at(o, l); unsafe { std::ptr::write_bytes(p, 0, l as usize) }; self.pm(o, l) }
    pub fn store_u64(&self, o: u64, v: u64) -> Pm<'_, u64, Dirty> { self.write(o, &v) }
    pub fn compare_exchange_u128(&self, o: u64, c: u128, n: u128) -> Result<Pm<'_, u128, Dirty>, u128> {
        static L: parking_lot::Mutex<()> = parking_lot::Mutex::new(());
        let _g = L.lock(); let now = self.load_u128(o); if now != c { return Err(now); }
        let _ = self.write(o, &n); Ok(self.pm(o, 16)) }
    pub fn fence<G: Group>(&self, g: G) -> G::Clean { std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst); g.land() }
    pub fn populate(&self, _o: u64, _l: u64) {}
    pub fn punch(&self, o: u64, l: u64) -> Result<(), PmemError> { Ok(rustix::fs::fallocate(&self.0.fd, rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE, o, l)?) }
    pub fn can_punch(&self) -> bool { true }
    pub fn allocated_ranges(&self, o: u64, l: u64) -> Vec<Range<u64>> {
        let mut v = vec![]; let mut at = o; let end = o + l;
        while at < end { let Ok(s) = rustix::fs::seek(&self.0.fd, rustix::fs::SeekFrom::Data(at)) else { break }; if s >= end { break } let e = rustix::fs::seek(&self.0.fd, rustix::fs::SeekFrom::Hole(s)).unwrap().min(end); v.push(s..e); at = e; }
        v }
    pub fn allocated_bytes(&self) -> u64 { rustix::fs::fstat(&self.0.fd).map_or(0, |s| s.st_blocks as u64 * 512) }
    pub fn sync(&self) -> Result<(), PmemError> { Ok(()) }
}
impl Drop for Map { fn drop(&mut self) { unsafe { let _ = rustix::mm::munmap(self.base as *mut _, self.len as usize); } } }
