package segstore

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"path"
	"strconv"
	"strings"

	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/segstore/manifest"
)

// The names below a data directory (FORMAT.md section 4).
const (
	streamsDir    = "streams"
	journalDir    = "journal"
	quarantineDir = "quarantine"
	lockName      = "LOCK"

	journalName    = "JOURNAL"
	manifestName   = "MANIFEST"
	checkpointName = "CHECKPOINT"
	segmentSuffix  = ".seg"
	indexSuffix    = ".idx"
	temporary      = ".tmp"
	removedSuffix  = ".removed"
)

// HashLength is the number of hex digits that stand for a stream's name in the
// name of its directory.
const HashLength = 16

// Hash returns what stands for a stream's name in the name of its directory.
// Clients choose names; they never become part of a path.
func Hash(name string) string {
	sum := sha256.Sum256([]byte(name))
	return hex.EncodeToString(sum[:HashLength/2])
}

// dirName returns the name of a stream's directory.
func dirName(name string, inc chunk.Incarnation) string { return Hash(name) + "-" + inc.String() }

// ParseDirName takes the name of a stream's directory apart.
func ParseDirName(dir string) (hash string, inc chunk.Incarnation, ok bool) {
	if len(dir) != HashLength+1+16 || dir[HashLength] != '-' || strings.ToLower(dir) != dir {
		return "", 0, false
	}
	hash = dir[:HashLength]
	if _, err := hex.DecodeString(hash); err != nil {
		return "", 0, false
	}
	n, err := strconv.ParseUint(dir[HashLength+1:], 16, 64)
	return hash, chunk.Incarnation(n), err == nil
}

func segmentFile(n manifest.Name) string { return n.String() + segmentSuffix }
func indexFile(n manifest.Name) string   { return n.String() + indexSuffix }

// parseFile takes the name of a segment's or index's file apart. Only the exact
// form that this program writes is ours.
func parseFile(file string) (n manifest.Name, suffix string, ok bool) {
	suffix = path.Ext(file)
	if suffix != segmentSuffix && suffix != indexSuffix {
		return n, "", false
	}
	lsn, generation, found := strings.Cut(strings.TrimSuffix(file, suffix), ".")
	if !found || len(lsn) != 20 {
		return n, "", false
	}
	first, err := strconv.ParseUint(lsn, 10, 64)
	if err != nil {
		return n, "", false
	}
	g, err := strconv.ParseUint(generation, 10, 32)
	if err != nil || first == 0 {
		return n, "", false
	}
	n = manifest.Name{FirstLSN: chunk.LSN(first), Generation: uint32(g)}
	return n, suffix, fmt.Sprintf("%s%s", n, suffix) == file
}
