package vfs

import "strings"

// Op names kinds of operations, as a set of bits: the rules of Faulty and the
// observer of Mem speak of them.
type Op uint32

// The operations. OpOpen is any opening, OpCreate besides it one that may make
// the file; OpSync is Sync and Datasync of a file.
const (
	OpOpen Op = 1 << iota
	OpCreate
	OpRead
	OpWrite
	OpTruncate
	OpSync
	OpSize
	OpClose
	OpRemove
	OpRename
	OpMkdir
	OpList
	OpStat
	OpSyncDir
	OpFreeSpace
	OpLock

	// OpChange is every operation that changes what a crash may leave.
	OpChange = OpCreate | OpWrite | OpTruncate | OpSync | OpRemove | OpRename | OpMkdir | OpSyncDir
)

var opNames = []string{
	"open", "create", "read", "write", "truncate", "sync", "size", "close",
	"remove", "rename", "mkdir", "list", "stat", "syncdir", "freespace", "lock",
}

func (o Op) String() string {
	var names []string
	for i, name := range opNames {
		if o&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	return strings.Join(names, "|")
}
