// Package statefile keeps the state of a single replica on disk: workers, reservations, and the
// blocks of each rank with the corresponding position in its event stream. [State] writes snapshots
// and brings the last one back. [Dir] is the directory, for one process at a time: a snapshot is
// written beside the last one, and then replaces that.
//
// # Format
//
// A file is a header and a sequence of sections. All numbers are little endian.
//
//	header   magic, version, hash seed, a hash by which another hash function would
//	         be noticed, time, random identity of the file, CRC
//	section  kind, number, length, CRC; then length bytes
//	         The CRC (Castagnoli) goes over the file's identity, these fields and the
//	         bytes, so that no section passes for another one or one of another file.
//	end      the last section: the SHA-256 of the header and of all section heads
//
// A rank's section has its scope, its worker and the checkpoint of its stream, as JSON. The
// sections of its blocks follow, interleaved with those of other ranks. A void section says
// that a rank's blocks must not be used after all. Neither reader nor writer holds more than
// one section and, while writing, a bounded amount of blocks.
package statefile
