package logstore

import (
	"errors"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// Room is the room on the file system that a store lies on, in bytes.
type Room struct {
	Total uint64
	Free  uint64 // for this process
}

// Low tells whether less is free than a reserve that is to stay free. Once it is low it
// is so until an eighth more than that is free, so that it does not change all the time.
func (r Room) Low(reserve uint64, was bool) bool {
	if was {
		return r.Free < reserve+reserve/8
	}
	return r.Free < reserve
}

// ErrRoomUnknown tells that a file system does not say how much room it has.
var ErrRoomUnknown = errors.New("the file system does not say how much room it has")

// Room asks the file system of the folder, or of the nearest folder above it
// that exists. It needs no open store.
func (c Config) Room() (Room, error) {
	fs, dir := c.FS, c.Dir
	if fs == nil {
		fs = vfs.Default
	}
	for {
		u, err := fs.GetDiskUsage(dir)
		switch above := fs.PathDir(dir); {
		case err == nil:
			return Room{Total: u.TotalBytes, Free: u.AvailBytes}, nil
		case errors.Is(err, vfs.ErrUnsupported):
			return Room{}, ErrRoomUnknown
		case above == dir || dir == "":
			return Room{}, err
		default:
			dir = above
		}
	}
}

// RoomNeeded is the room that the store's own files want beside what is kept:
// two log files as large as a memory table, which are allocated before they are
// written, the table that is made of one, and as much again while tables are
// merged.
func (c Config) RoomNeeded() uint64 { return 4 * uint64(c.withDefaults().MemTableBytes) }

const (
	largestMemTable  = 64 << 20
	smallestMemTable = 4 << 20
)

// fittingMemTable is the size of a memory table for the file system: log files
// are as large, and are allocated before they are written.
func (c Config) fittingMemTable() int64 {
	room, err := c.Room()
	if err != nil || room.Total/64 >= largestMemTable {
		return largestMemTable
	}
	return max(int64(room.Total/64), smallestMemTable)
}
