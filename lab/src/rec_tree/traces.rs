//! What programs do with their memory: a key-value store that compacts tables, a program that patches a text, and one
//! that clips a video. Each follows ICID 5.1, with the sizes of the real programs.

use super::machine::Machine;
use nvfold_bench::data::Random;

/// Bytes of a key, and of the header before each entry of a block (LevelDB: three short numbers).
const KEY_BYTES: usize = 16;
const ENTRY_HEADER_BYTES: usize = 4;
/// Bytes of a block of a table before it is closed, and of its trailer (type and checksum).
const BLOCK_BYTES: usize = 4096;
const BLOCK_TRAILER_BYTES: usize = 5;
/// Buffer of an output file.
const WRITE_BUFFER_BYTES: usize = 64 << 10;
/// Entries between two restart points, 4 bytes each at the end of a block.
const RESTART_EVERY: usize = 16;

/// Placement of buffers: freed memory is reused, or never.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Heap {
    /// As an allocator does it.
    Reused,
    /// The worst case for a tree of bounded size.
    Fresh,
}

/// A heap of buffers, with other data between them.
struct Buffers {
    heap: Heap,
    next: usize,
    end: usize,
    random: Random,
}

impl Buffers {
    /// Returns an address for `bytes` bytes; `again` is the buffer that is freed, if there is one.
    fn take(&mut self, again: Option<usize>, bytes: usize) -> usize {
        if let (Heap::Reused, Some(again)) = (self.heap, again) {
            return again;
        }
        // The heap of the model is finite: at its end it starts again.
        if self.next + bytes > self.end {
            self.next = 0;
        }
        let place = self.next;
        self.next += bytes.next_multiple_of(16) + 16 * (1 + self.random.next_u64() as usize % 256);
        place
    }
}

/// Bytes of memory that [`compaction`] needs.
pub(super) const COMPACTION_MEMORY_BYTES: usize = 64 << 20;

/// LevelDB merges sorted tables into one (4.1, 5.2). Entries are taken from blocks that are read into buffers, one
/// block per input, and assembled in a block buffer. Values are copied by a function that is followed; keys are not,
/// because they are assembled from a prefix and a rest. A full block is copied to the buffer of the file, which is
/// written when it is full.
pub(super) fn compaction(
    machine: &mut Machine<'_>,
    entries: usize,
    value_bytes: usize,
    heap: Heap,
    random: &mut Random,
) {
    const INPUTS: usize = 4;
    let entry_bytes = ENTRY_HEADER_BYTES + KEY_BYTES + value_bytes;
    let entries_a_block = BLOCK_BYTES.div_ceil(entry_bytes);
    let block_bytes =
        entries_a_block * entry_bytes + 4 * entries_a_block.div_ceil(RESTART_EVERY) + 4 + BLOCK_TRAILER_BYTES;
    let mut buffers = Buffers { heap, next: 0, end: COMPACTION_MEMORY_BYTES, random: Random(random.next_u64()) };
    let inputs: Vec<usize> =
        (0..INPUTS).map(|_| machine.file((entries / INPUTS).div_ceil(entries_a_block) * block_bytes, random)).collect();
    let output = machine.file(0, random);
    // For each input the buffer of its block, the number of the next block, and the entries that are consumed.
    let mut cursors = [(None, 0, entries_a_block); INPUTS];
    let mut block: (usize, usize, usize) = (buffers.take(None, block_bytes + entry_bytes), 0, 0);
    let mut file_buffer = (buffers.take(None, WRITE_BUFFER_BYTES), 0);
    loop {
        let input = random.next_u64() as usize % INPUTS;
        let (buffer, block_number, used) = &mut cursors[input];
        if *used == entries_a_block {
            let place = buffers.take(*buffer, block_bytes);
            *buffer = Some(place);
            if machine.read(inputs[input], *block_number * block_bytes, place, block_bytes) == 0 {
                break;
            }
            (*block_number, *used) = (*block_number + 1, 0);
        }
        let value = buffer.expect("a block was read") + *used * entry_bytes + ENTRY_HEADER_BYTES + KEY_BYTES;
        *used += 1;
        let (place, filled, entries) = &mut block;
        machine.store(*place + *filled, ENTRY_HEADER_BYTES + KEY_BYTES, random);
        machine.copy(value, *place + *filled + ENTRY_HEADER_BYTES + KEY_BYTES, value_bytes);
        *filled += entry_bytes;
        *entries += 1;
        if *filled < BLOCK_BYTES {
            continue;
        }
        let restarts = 4 * entries.div_ceil(RESTART_EVERY) + 4;
        machine.store(*place + *filled, restarts, random);
        append(machine, output, &mut file_buffer, &mut buffers, *place, *filled + restarts);
        let trailer = buffers.take(Some(COMPACTION_MEMORY_BYTES - 16), BLOCK_TRAILER_BYTES);
        machine.store(trailer, BLOCK_TRAILER_BYTES, random);
        append(machine, output, &mut file_buffer, &mut buffers, trailer, BLOCK_TRAILER_BYTES);
        block = (buffers.take(Some(*place), block_bytes + entry_bytes), 0, 0);
    }
    machine.write(output, file_buffer.0, file_buffer.1);
    inputs.into_iter().chain([output]).for_each(|file| machine.close(file));
}

/// Appends memory to the buffer of a file, and writes the buffer when it is full.
fn append(
    machine: &mut Machine<'_>,
    file: usize,
    (buffer, filled): &mut (usize, usize),
    buffers: &mut Buffers,
    mut from: usize,
    mut length: usize,
) {
    while length > 0 {
        let bytes = length.min(WRITE_BUFFER_BYTES - *filled);
        machine.copy(from, *buffer + *filled, bytes);
        (from, length, *filled) = (from + bytes, length - bytes, *filled + bytes);
        if *filled == WRITE_BUFFER_BYTES {
            machine.write(file, *buffer, WRITE_BUFFER_BYTES);
            (*buffer, *filled) = (buffers.take(Some(*buffer), WRITE_BUFFER_BYTES), 0);
        }
    }
}

/// GNU patch: reads a text completely, and writes it line by line through a buffer of 4 KiB; about every hundredth
/// line is changed.
pub(super) fn patch(machine: &mut Machine<'_>, text_bytes: usize, random: &mut Random) {
    let (input, output) = (machine.file(text_bytes, random), machine.file(0, random));
    for offset in (0..text_bytes).step_by(64 << 10) {
        machine.read(input, offset, offset, 64 << 10);
    }
    let buffer = text_bytes.next_multiple_of(4096) + 100;
    let (mut line, mut filled) = (0, 0);
    while line < text_bytes {
        let bytes = (1 + random.next_u64() as usize % 80).min(text_bytes - line);
        if filled + bytes > 4096 {
            // The rest of the buffer takes the beginning of the line.
            let first = 4096 - filled;
            machine.copy(line, buffer + filled, first);
            machine.write(output, buffer, 4096);
            machine.copy(line + first, buffer, bytes - first);
            filled = bytes - first;
        } else {
            if random.next_u64().is_multiple_of(100) {
                machine.store(buffer + filled, bytes, random);
            } else {
                machine.copy(line, buffer + filled, bytes);
            }
            filled += bytes;
        }
        line += bytes;
    }
    machine.write(output, buffer, filled);
    machine.close(input);
    machine.close(output);
}

/// FFmpeg, the first half of an AVI: copies packets of pictures and sound from a buffer of 32 KiB to separate memory,
/// and from there, behind headers of 8 bytes, to another buffer of 32 KiB.
pub(super) fn clip(machine: &mut Machine<'_>, video_bytes: usize, random: &mut Random) {
    const BUFFER: usize = 32 << 10;
    const PACKETS: usize = 8;
    let (input, output) = (machine.file(video_bytes, random), machine.file(0, random));
    let (read, write, packets) = (64, BUFFER + 128, 2 * BUFFER + 256);
    let (mut offset, mut unread, mut at, mut filled) = (0, 0, 0, 0);
    for number in 0.. {
        // A picture, then the sound that belongs to it.
        let bytes = if number % 2 == 0 {
            500 + random.next_u64() as usize % 12_000
        } else {
            300 + random.next_u64() as usize % 300
        };
        let packet = packets + number % PACKETS * (16 << 10);
        let mut taken = 0;
        while taken < bytes {
            if unread == 0 {
                unread = machine.read(input, offset, read, BUFFER);
                (offset, at) = (offset + unread, 0);
            }
            let part = unread.min(bytes - taken);
            machine.copy(read + at, packet + taken, part);
            (taken, at, unread) = (taken + part, at + part, unread - part);
        }
        let mut put = |machine: &mut Machine<'_>, from: Option<usize>, bytes: usize| {
            let mut done = 0;
            while done < bytes {
                let part = (BUFFER - filled).min(bytes - done);
                match from {
                    Some(from) => machine.copy(from + done, write + filled, part),
                    None => machine.store(write + filled, part, &mut Random(number as u64)),
                }
                (done, filled) = (done + part, filled + part);
                if filled == BUFFER {
                    machine.write(output, write, BUFFER);
                    filled = 0;
                }
            }
        };
        put(machine, None, 8);
        put(machine, Some(packet), bytes);
        if offset > video_bytes / 2 {
            break;
        }
    }
    machine.write(output, write, filled);
    machine.close(input);
    machine.close(output);
}
