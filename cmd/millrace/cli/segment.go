package cli

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/admin"
	"github.com/millrace/millrace/cmd/millrace/inspect"
	"github.com/millrace/millrace/cmd/millrace/node"
	"github.com/millrace/millrace/segstore/chunk"
)

func segmentCommand(t *terminal) *cobra.Command {
	return group("segment", "look into a stream's files, of a running node or of a stopped one",
		examples(
			"millrace segment list orders", "ask the running node",
			"millrace segment verify orders", "read every byte and check it",
			"millrace segment verify --all --data-dir ./millrace-data", "the files of a stopped node",
			"millrace segment dump ./millrace-data/streams/…/00000000000000000001.0.seg", "the chunks of one file"),
		segmentList(t), segmentDump(t), segmentVerify(t), repairCommand(t, "segment"))
}

// source is where a segment command finds files: the API of a running node, or
// the folders of a stopped one.
type source struct {
	atNode
	dataDir     string
	incarnation string
}

func (s *source) addFlags(cmd *cobra.Command, t *terminal, standard string) {
	s.atNode.addFlags(cmd, t, standard)
	cmd.Flags().StringVar(&s.dataDir, "data-dir", "", "read the files of a stopped node in this folder instead of asking a running one")
	cmd.Flags().StringVar(&s.incarnation, "incarnation", "", "16 hex digits; for files that were moved out of their stream's folder")
}

// folders are those of the named stream, or of all streams.
func (s *source) folders(name string) ([]inspect.Folder, error) {
	if name == "" {
		return inspect.Streams(s.dataDir)
	}
	found, err := inspect.Find(s.dataDir, node.LogName(s.vhost, name))
	if err == nil && len(found) == 0 {
		return nil, fail(exitNotFound, "%s has no files of stream %q in virtual host %q", s.dataDir, name, s.vhost).
			suggest("millrace segment verify --all --data-dir " + s.dataDir)
	}
	return found, err
}

// parent is the folder of a file that was named by its path.
func (s *source) parent(file string) (inspect.Folder, error) {
	inc, err := s.parseIncarnation()
	if err != nil {
		return inspect.Folder{}, err
	}
	folder, err := inspect.Open(filepath.Dir(file), inc)
	if err != nil {
		return folder, usage("%w", err).suggest("--incarnation 0123456789abcdef   the second half of the stream folder's name")
	}
	return folder, nil
}

func (s *source) parseIncarnation() (chunk.Incarnation, error) {
	if s.incarnation == "" {
		return 0, nil
	}
	n, err := strconv.ParseUint(s.incarnation, 16, 64)
	if err != nil {
		return 0, usage("--incarnation %s is no hexadecimal number", s.incarnation)
	}
	return chunk.Incarnation(n), nil
}

func segmentList(t *terminal) *cobra.Command {
	var s source
	cmd := &cobra.Command{
		Use: "list STREAM", Short: "list the files of a stream", Args: arguments(1, 1),
		Example: examples("millrace segment list orders", "", "millrace segment list orders --data-dir ./millrace-data", "of a stopped node"),
	}
	s.addFlags(cmd, t, "the leader's")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		list, err := s.segments(cmd.Context(), args[0])
		if err != nil {
			return err
		}
		out := segmentListing(list)
		return out.print(t.out, s.format)
	}
	return cmd
}

// segmentListing shows segments: what their bytes are for, what compaction could
// gain (DROPPABLE) and has gained since the log was opened (DROPPED).
func segmentListing(list []admin.Segment) listing {
	out := listing{columns: []column{left("SEGMENT"), right("FIRST").named("first_offset"), right("NEXT").named("next_offset"), right("MESSAGES"),
		right("USER").named("user_bytes"), right("TRAILERS").named("trailer_bytes"), right("DELTAS").named("delta_bytes"),
		right("SNAPSHOTS").named("snapshot_bytes"), right("FILTERS").named("filter_bytes"), right("INDEX").named("index_bytes"),
		right("DISK").named("disk_bytes"), right("DROPPABLE").named("droppable_bytes"), right("DROPPED").named("dropped_bytes"),
		left("STATE"), more(right("CHUNKS")), more(right("OFFSETS").named("tracking_bytes")),
		more(right("SEQUENCES").named("sequence_bytes")), more(left("UNIT")), more(left("OLDEST")), more(left("NEWEST"))}}
	for _, g := range list {
		unit := "-"
		if g.UnitStart {
			unit = "starts"
		}
		b := g.Bytes
		out.add(g, g.File, counted(g.FirstOffset), counted(g.NextOffset), counted(g.Records), sized(b.User),
			sized(b.Trailer), sized(b.Delta), sized(b.Snapshot), sized(b.Filter), sized(b.Index), sized(b.Disk),
			sized(g.Droppable), sized(g.Dropped), g.State, counted(g.Chunks), sized(g.TrackingBytes),
			sized(g.SequenceBytes), unit, dated(g.FirstTimestamp), dated(g.LastTimestamp))
	}
	return out
}

func (s *source) segments(ctx context.Context, stream string) ([]admin.Segment, error) {
	var list []admin.Segment
	if s.dataDir == "" {
		err := s.call(ctx, "GET", s.named(streamPath(s.vhost, stream)+"/segments"), nil, &list)
		return list, err
	}
	folders, err := s.folders(stream)
	if err != nil {
		return nil, err
	}
	for _, f := range folders {
		of, err := f.Segments()
		if err != nil {
			return nil, err
		}
		list = append(list, of...)
	}
	return list, nil
}

func segmentDump(t *terminal) *cobra.Command {
	var s source
	cmd := &cobra.Command{
		Use: "dump FILE | STREAM SEGMENT", Short: "list the chunks of one file", Args: arguments(1, 2),
		Example: examples(
			"millrace segment dump orders 00000000000000000001.0.seg", "ask the running node",
			"millrace segment dump 00000000000000000001.0.seg --incarnation 0123456789abcdef", "a file that lies anywhere"),
	}
	s.addFlags(cmd, t, "the leader's")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		list, err := s.chunks(cmd.Context(), args)
		if err != nil {
			return err
		}
		out := listing{columns: []column{right("POSITION"), right("LSN"), right("EPOCH"), left("TYPE"), right("FIRST").named("first_offset"),
			right("ENTRIES"), right("RECORDS"), right("DATA").named("data_bytes"), right("TRAILER").named("trailer_bytes"),
			right("FILTER").named("filter_bytes"), left("TIME"), left("FLAGS")}}
		for _, c := range list {
			out.add(c, strconv.FormatInt(c.Position, 10), counted(c.LSN), counted(c.Epoch), c.Type, counted(c.FirstOffset),
				strconv.Itoa(c.Entries), strconv.FormatUint(uint64(c.Records), 10), strconv.Itoa(c.DataBytes),
				strconv.Itoa(c.TrailerBytes), strconv.Itoa(c.FilterBytes), dated(c.Timestamp), c.Flags)
		}
		return out.print(t.out, s.format)
	}
	return cmd
}

func (s *source) chunks(ctx context.Context, args []string) ([]admin.Chunk, error) {
	if len(args) == 1 {
		if _, err := os.Stat(args[0]); errors.Is(err, os.ErrNotExist) {
			return nil, fail(exitNotFound, "there is no file %q: %w", args[0], err).
				suggest(fmt.Sprintf("millrace segment dump %s SEGMENT    where it is a stream", args[0]), "millrace segment list "+args[0])
		} else if err != nil {
			return nil, err
		}
		folder, err := s.parent(args[0])
		if err != nil {
			return nil, err
		}
		return folder.Chunks(filepath.Base(args[0]))
	}
	stream, file := args[0], args[1]
	if !strings.HasSuffix(file, ".seg") {
		file += ".seg"
	}
	if s.dataDir == "" {
		var list []admin.Chunk
		err := s.call(ctx, "GET", s.named(streamPath(s.vhost, stream)+"/segments/"+url.PathEscape(file)+"/chunks"), nil, &list)
		return list, err
	}
	folders, err := s.folders(stream)
	if err != nil {
		return nil, err
	}
	for _, f := range folders {
		if _, err := os.Stat(filepath.Join(f.Path(), file)); err == nil {
			return f.Chunks(file)
		}
	}
	return nil, fail(exitNotFound, "stream %q has no segment %s in %s", stream, file, s.dataDir)
}

func segmentVerify(t *terminal) *cobra.Command {
	var s source
	var all bool
	cmd := &cobra.Command{
		Use: "verify STREAM | FILE | --all", Short: "read every byte of a stream's files and check it", Args: arguments(0, 1),
		Long: `Reads every byte of a stream's files and checks it: both CRCs of each chunk, that
offsets, digests and epochs follow each other, and that footers tell the truth.
Changes nothing. Exits with 8 if anything is wrong, or a replica could not be read
since its node does not answer.`,
		Example: examples(
			"millrace segment verify orders", "all replicas of a stream",
			"millrace segment verify orders --node n2", "one replica",
			"millrace segment verify --all", "all streams",
			"millrace segment verify --all --data-dir ./millrace-data", "a stopped node's files"),
	}
	s.addFlags(cmd, t, "all of them")
	s.allow(cmd, logTimeout)
	cmd.Flags().BoolVar(&all, "all", false, "every stream")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if all == (len(args) == 1) {
			return usage("name a stream or a file, or say --all").suggest(cmd.UseLine())
		}
		list, err := s.verdicts(cmd.Context(), args)
		if err != nil {
			return err
		}
		return printVerdicts(t, s.format, list)
	}
	return cmd
}

// fileVerdict says whose file it is about: files of all streams have the same names.
type fileVerdict struct {
	VHost  string `json:"vhost,omitempty"`
	Stream string `json:"stream"` // of a stopped node: its folder, whose name is not the stream's
	admin.Verdict
}

func verdictsOf(vhost, stream string, list []admin.Verdict) []fileVerdict {
	var of []fileVerdict
	for _, v := range list {
		of = append(of, fileVerdict{vhost, stream, v})
	}
	return of
}

func printVerdicts(t *terminal, format string, verdicts []fileVerdict) error {
	out := listing{columns: []column{left("SEGMENT"), right("CHUNKS"), right("RECORDS"), right("BYTES"), left("FOUND"), left("NODE"),
		left("STREAM"), more(left("VHOST"))}}
	bad, files := 0, 0
	var silent []string
	for _, v := range verdicts {
		found := "good"
		if v.Unknown {
			silent = append(silent, v.Stream+" on "+v.Node)
		} else {
			bad += len(v.Problems)
			files++
		}
		if len(v.Problems) > 0 {
			found = v.Problems[0]
			if more := len(v.Problems) - 1; more > 0 {
				found += " (and " + strconv.Itoa(more) + " more)"
			}
		}
		out.add(v, or(v.File, "-"), counted(v.Chunks), counted(v.Records), sized(uint64(v.Bytes)), found, or(v.Node, "-"), v.Stream, or(v.VHost, "-"))
	}
	if err := out.print(t.out, format); err != nil {
		return err
	}
	var wrong []string
	if bad > 0 {
		wrong = append(wrong, fmt.Sprintf("not as it should be: %s in %s", some(bad, "place"), some(files, "file")))
	}
	if len(silent) > 0 {
		wrong = append(wrong, fmt.Sprintf("not asked, since the node does not answer: %s%s", some(len(silent), "replica"), list(silent)))
	}
	if len(wrong) > 0 {
		return fail(exitDegraded, "%s", strings.Join(wrong, "\n"))
	}
	return nil
}

func (s *source) verdicts(ctx context.Context, args []string) ([]fileVerdict, error) {
	if len(args) == 1 && strings.HasSuffix(args[0], ".seg") {
		folder, err := s.parent(args[0])
		if err != nil {
			return nil, err
		}
		v, err := folder.VerifyFile(filepath.Base(args[0]))
		return verdictsOf("", filepath.Base(folder.Path()), []admin.Verdict{v}), err
	}
	name := ""
	if len(args) == 1 {
		name = args[0]
	}
	if s.dataDir == "" {
		return s.remoteVerdicts(ctx, name)
	}
	folders, err := s.folders(name)
	if err != nil {
		return nil, err
	}
	var list []fileVerdict
	for _, f := range folders {
		of, err := f.Verify(ctx)
		if err != nil {
			return nil, err
		}
		list = append(list, verdictsOf("", filepath.Base(f.Path()), of)...)
	}
	return list, nil
}

// remoteVerdicts asks the node for one stream, or for each that it lists.
func (s *source) remoteVerdicts(ctx context.Context, name string) ([]fileVerdict, error) {
	streams := []admin.Stream{{VHost: s.vhost, Name: name}}
	if name == "" {
		if err := s.call(ctx, "GET", "/api/v1/streams", nil, &streams); err != nil {
			return nil, err
		}
	}
	var list []fileVerdict
	for _, stream := range streams {
		var of []admin.Verdict
		if err := s.call(ctx, "POST", s.named(streamPath(stream.VHost, stream.Name)+"/verify"), nil, &of); err != nil {
			return nil, err
		}
		list = append(list, verdictsOf(stream.VHost, stream.Name, of)...)
	}
	return list, nil
}
