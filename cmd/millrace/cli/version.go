package cli

import (
	"fmt"
	"io"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// Version is the release that this is; a release build sets it by -ldflags.
var Version = "0.1.0-dev"

type versionInfo struct {
	Version  string `json:"version"`
	Commit   string `json:"commit,omitempty"`
	Modified bool   `json:"modified,omitempty"` // built from an edited tree
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func versionCommand(t *terminal) *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use: "version", Short: "say which version this is", Args: arguments(0, 0),
		Example: examples("millrace version", "", "millrace version -o json", "for scripts"),
		RunE: func(*cobra.Command, []string) error {
			return printVersion(t, format)
		},
	}
	addFormat(cmd, &format)
	return cmd
}

func printVersion(t *terminal, format string) error {
	v := currentVersion()
	return printOne(t.out, format, v, func(w io.Writer) error {
		_, err := fmt.Fprintf(w, "millrace %s\n%s %s%s\n", v.Version, v.Go, v.Platform, commitText(v))
		return err
	})
}

func currentVersion() versionInfo {
	v := versionInfo{Version: Version, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	if build, ok := debug.ReadBuildInfo(); ok {
		for _, s := range build.Settings {
			switch s.Key {
			case "vcs.revision":
				v.Commit = s.Value
			case "vcs.modified":
				v.Modified = s.Value == "true"
			}
		}
	}
	return v
}

func commitText(v versionInfo) string {
	switch {
	case v.Commit == "":
		return ""
	case v.Modified:
		return " commit " + v.Commit + " with changes"
	}
	return " commit " + v.Commit
}
