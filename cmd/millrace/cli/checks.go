package cli

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/admin"
)

// probe is a check by its name, of so many things that are named.
func probe(t *terminal, use, short, long, example, meaning string, named int, flags func(*probing, *cobra.Command),
	check func(p *probing, cmd *cobra.Command, args []string, f *finding) error) *cobra.Command {
	var p probing
	cmd := &cobra.Command{Use: use, Short: short, Long: long, Args: arguments(named, named), Example: examples(example, meaning)}
	p.addFlags(cmd, t)
	if flags != nil {
		flags(&p, cmd)
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		subject := ""
		if len(args) == 1 {
			subject = args[0]
		}
		return p.run(cmd.Name(), subject, func(f *finding) error { return check(&p, cmd, args, f) })
	}
	return cmd
}

// inVHost is for checks of what is in a virtual host.
func inVHost(p *probing, cmd *cobra.Command) {
	cmd.Flags().StringVar(&p.vhost, "vhost", "/", "virtual host")
}

func checkCluster(t *terminal) *cobra.Command {
	return probe(t, "cluster", "are all nodes and streams well?",
		`Critical: nobody leads the metadata, a stream has no leader, or the node that is
asked is no member. Warning: a node is down or low on disk, or a replica does not
count.`,
		"millrace check cluster --format nagios", "for a monitoring system", 0, nil,
		func(p *probing, cmd *cobra.Command, _ []string, f *finding) error {
			var c admin.Cluster
			if err := p.call(cmd.Context(), "GET", "/api/v1/cluster", nil, &c); err != nil {
				return err
			}
			judgeCluster(f, &c)
			return nil
		})
}

func judgeCluster(f *finding, c *admin.Cluster) {
	f.Summary = fmt.Sprintf("%s up, %s led", some(len(c.Members), "node"), some(c.Streams, "stream"))
	level := checkWarning
	if c.Removed || !c.Seen || c.WithoutLeader > 0 {
		level = checkCritical
	}
	for _, what := range c.Problems {
		f.because(level, "%s", what)
	}
	f.figure("nodes", float64(len(c.Members)))
	f.figure("nodes_up", float64(up(*c)))
	f.figure("streams", float64(c.Streams))
	f.figure("streams_without_leader", float64(c.WithoutLeader))
	f.figure("streams_under_replicated", float64(c.UnderReplicated))
}

func checkStream(t *terminal) *cobra.Command {
	return probe(t, "stream NAME", "can a stream be written and read, and are its replicas well?",
		`Critical: there is no such stream, it has no leader that answers, or its publishers
are stopped since disks are low. Warning: a replica is down, does not count or has
damaged segments.`,
		"millrace check stream orders", "", 1, inVHost,
		func(p *probing, cmd *cobra.Command, args []string, f *finding) error {
			path := streamPath(p.vhost, args[0])
			var s admin.Stream
			var replicas []admin.Replica
			if err := p.call(cmd.Context(), "GET", path, nil, &s); err != nil {
				if explain(err).code == exitNotFound {
					f.Level = checkCritical
				}
				return err
			}
			if err := p.call(cmd.Context(), "GET", path+"/replicas", nil, &replicas); err != nil {
				return err
			}
			judgeStream(f, &s, replicas)
			return nil
		})
}

func judgeStream(f *finding, s *admin.Stream, replicas []admin.Replica) {
	counting := 0
	for _, r := range replicas {
		switch {
		case r.NextOffset == nil:
			f.because(checkWarning, "the replica on %s does not answer", r.Node)
		case !r.Voter:
			f.because(checkWarning, "the replica on %s does not count: %s", r.Node, r.State)
		default:
			counting++
		}
		if r.Damaged != nil && *r.Damaged > 0 {
			f.because(checkWarning, "the replica on %s has %s damaged", r.Node, some(*r.Damaged, "segment"))
		}
	}
	switch {
	case s.Leader == "":
		f.because(checkCritical, "it has no leader")
	case s.FiguresOf != s.Leader:
		f.because(checkCritical, "its leader %s does not answer", s.Leader)
	case s.PublishersStopped:
		f.because(checkCritical, "publishers are stopped: too many of its nodes are low on disk")
	}
	f.Summary = fmt.Sprintf("led by %s, %s in sync", s.Leader, some(counting, "replica"))
	f.figure("messages", float64(s.Messages))
	f.figure("user_bytes", float64(s.Bytes.User))
	f.figure("replicas", float64(len(replicas)))
	f.figure("replicas_in_sync", float64(counting))
}

func checkDisk(t *terminal) *cobra.Command {
	return probe(t, "disk", "has the node's disk room?",
		`Critical: publishers are stopped since the disk of the node that is asked is below
disk.free_min. Warning: it is so low that retention runs for it.`,
		"millrace check disk --addr http://n2.example.com:7080", "n2's", 0, nil,
		func(p *probing, cmd *cobra.Command, _ []string, f *finding) error {
			var s admin.Status
			if err := p.call(cmd.Context(), "GET", "/api/v1/status", nil, &s); err != nil {
				return err
			}
			return judgeDisk(f, &s)
		})
}

func judgeDisk(f *finding, s *admin.Status) error {
	d := s.Disk
	f.figure("free_bytes", float64(d.FreeBytes))
	f.figure("total_bytes", float64(d.TotalBytes))
	f.figure("low_below_bytes", float64(d.LowBelowBytes))
	f.figure("alarm_below_bytes", float64(d.AlarmBelowBytes))
	f.Summary = fmt.Sprintf("%s: %s free of %s", s.Node, size(d.FreeBytes), size(d.TotalBytes))
	if d.Error != "" {
		return fmt.Errorf("%s could not measure its disk: %s", s.Node, d.Error)
	}
	switch d.Level {
	case "alarm":
		f.because(checkCritical, "%s: publishers are stopped, %s free of %s, the limit is %s", s.Node, size(d.FreeBytes), size(d.TotalBytes), size(d.AlarmBelowBytes))
	case "low":
		f.because(checkWarning, "%s: %s free of %s, publishers stop below %s", s.Node, size(d.FreeBytes), size(d.TotalBytes), size(d.AlarmBelowBytes))
	}
	return nil
}

// lagLimits are what a reader may be behind; zero ones are no limit.
type lagLimits struct {
	warning, critical       uint64 // messages
	warningAge, criticalAge time.Duration
}

func checkLag(t *terminal) *cobra.Command {
	var limits lagLimits
	var reference, stream, warningAge, criticalAge string
	return probe(t, "lag", "is any reader too far behind?",
		`Looks at every reference that has stored an offset, connected or not, and says who is
behind by more messages, or by older ones, than it may be. Unknown, if it is not
critical: a stream has no leader to ask.`,
		"millrace check lag --group billing --warning-age 1m --critical-age 10m", "one reference", 0,
		func(_ *probing, cmd *cobra.Command) {
			cmd.Flags().Uint64Var(&limits.warning, "warning", 0, "messages behind from which on to warn; 0 = never")
			cmd.Flags().Uint64Var(&limits.critical, "critical", 0, "messages behind from which on to say no; 0 = never")
			cmd.Flags().StringVar(&warningAge, "warning-age", "", "age of the first unread message from which on to warn, such as 5m or 2h")
			cmd.Flags().StringVar(&criticalAge, "critical-age", "", "the same from which on to say no")
			cmd.Flags().StringVar(&reference, "group", "", "only this reference")
			cmd.Flags().StringVar(&stream, "stream", "", "only this stream")
		},
		func(p *probing, cmd *cobra.Command, _ []string, f *finding) error {
			for _, age := range []struct {
				text string
				into *time.Duration
			}{{warningAge, &limits.warningAge}, {criticalAge, &limits.criticalAge}} {
				d, ok := parsePeriod(age.text)
				if age.text != "" && !ok {
					return usage("%q is no age, such as %s", age.text, periodExample)
				}
				*age.into = d
			}
			list, unled, err := p.readers(cmd.Context(), "", stream)
			if err != nil {
				return err
			}
			for _, name := range unled {
				f.because(checkUnknown, "%s has no leader to ask", name)
			}
			judgeLag(f, list, reference, limits)
			return nil
		})
}

func judgeLag(f *finding, list []laggard, reference string, limits lagLimits) {
	most, oldest, seen := uint64(0), time.Duration(0), 0
	for _, l := range list {
		if reference != "" && l.Reference.Reference != reference {
			continue
		}
		seen++
		age := time.Duration(0)
		if l.LagMS != nil {
			age = time.Duration(*l.LagMS) * time.Millisecond
		}
		most, oldest = max(most, *l.Lag), max(oldest, age)
		reaches := func(messages uint64, old time.Duration) bool {
			return messages > 0 && *l.Lag >= messages || old > 0 && age >= old
		}
		level := 0
		if reaches(limits.warning, limits.warningAge) {
			level = checkWarning
		}
		if reaches(limits.critical, limits.criticalAge) {
			level = checkCritical
		}
		if level > 0 {
			f.because(level, "%s on %s is %s behind, %s", l.Reference.Reference, l.Stream, some(*l.Lag, "message"), period(age))
		}
	}
	f.Summary = fmt.Sprintf("%s, at most %s and %s behind", some(seen, "reader"), some(most, "message"), period(oldest))
	f.figure("readers", float64(seen))
	f.figure("lag_messages", float64(most))
	f.figure("lag_seconds", oldest.Seconds())
}
