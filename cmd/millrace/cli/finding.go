package cli

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
)

// A finding is what a check comes to. Its level is the exit code: 0, or
// checkWarning, checkCritical, checkUnknown.
type finding struct {
	Check   string   `json:"check"`
	Subject string   `json:"subject,omitempty"` // what was checked, where there are several
	State   string   `json:"state"`
	Level   int      `json:"level"`
	Reasons []string `json:"reasons"` // why it is not ok
	Summary string   `json:"summary"`
	Figures []figure `json:"figures"`
}

// A figure is a number that a check looked at. Names have their unit, as in JSON.
type figure struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
}

// findingStates are the names of levels.
var findingStates = []string{"ok", "warning", "critical", "unknown"}

// because adds a reason. The worst counts, and what is critical is worse than
// what nobody knows.
func (f *finding) because(level int, format string, args ...any) {
	f.Reasons = append(f.Reasons, fmt.Sprintf(format, args...))
	if f.Level != checkCritical && (level > f.Level || level == checkCritical) {
		f.Level = level
	}
}

func (f *finding) figure(name string, value float64) {
	f.Figures = append(f.Figures, figure{name, value})
}

// checkFormats are those of --format.
var checkFormats = map[string]func(io.Writer, *finding) error{
	"text": findingText, "nagios": findingNagios, "json": func(w io.Writer, f *finding) error { return printJSON(w, f) },
	"prometheus": findingPrometheus,
}

// probing is what checks share: who is asked, and how the answer is written.
type probing struct {
	query
	format string
}

func (p *probing) addFlags(cmd *cobra.Command, t *terminal) {
	p.api.addFlags(cmd.Flags(), t)
	cmd.Flags().StringVar(&p.format, "format", "text", "text, nagios, json or prometheus")
	cmd.PreRunE = func(*cobra.Command, []string) error {
		if checkFormats[p.format] == nil {
			return usage("--format %s is no form of a check", p.format).suggest("one of text, nagios, json, prometheus")
		}
		return nil
	}
}

// run makes a check and reports it: an error is a check that came to nothing.
func (p *probing) run(name, subject string, check func(*finding) error) error {
	f := finding{Check: name, Subject: subject, Reasons: []string{}, Figures: []figure{}}
	if err := check(&f); err != nil {
		if f.Level != checkCritical {
			f.Level = checkUnknown
		}
		f.Reasons = append(f.Reasons, explain(err).what)
	}
	f.State = findingStates[f.Level]
	if len(f.Reasons) > 0 {
		f.Summary = strings.Join(f.Reasons, "; ")
	}
	if err := checkFormats[p.format](p.t.out, &f); err != nil {
		return err
	}
	if f.Level == 0 {
		return nil
	}
	return &problem{code: f.Level, what: f.Summary, said: true}
}

func findingText(w io.Writer, f *finding) error {
	_, err := fmt.Fprintf(w, "%s: %s\n", f.State, f.Summary)
	return err
}

// findingNagios is the form that plug-ins of Nagios and its heirs have: a line,
// and behind the bar the figures.
func findingNagios(w io.Writer, f *finding) error {
	var figures []string
	for _, v := range f.Figures {
		figures = append(figures, v.Name+"="+decimal(v.Value))
	}
	line := strings.ToUpper("millrace " + f.Check + " " + f.State)
	_, err := fmt.Fprintf(w, "%s - %s | %s\n", line, strings.ReplaceAll(f.Summary, "|", "/"), strings.Join(figures, " "))
	return err
}

// findingPrometheus is for a textfile collector.
func findingPrometheus(w io.Writer, f *finding) error {
	labels := fmt.Sprintf("check=%q", f.Check)
	if f.Subject != "" {
		labels += fmt.Sprintf(",subject=%q", f.Subject)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "# HELP millrace_check_level 0 ok, 1 warning, 2 critical, 3 unknown.\n# TYPE millrace_check_level gauge\nmillrace_check_level{%s} %d\n", labels, f.Level)
	if len(f.Figures) > 0 {
		b.WriteString("# HELP millrace_check_figure What the check looked at.\n# TYPE millrace_check_figure gauge\n")
	}
	for _, v := range f.Figures {
		fmt.Fprintf(&b, "millrace_check_figure{%s,figure=%q} %s\n", labels, v.Name, decimal(v.Value))
	}
	_, err := io.WriteString(w, b.String())
	return err
}
