package main

import (
	"cmp"
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"

	"github.com/spf13/cobra"
)

// The linker sets these on a release build (.goreleaser.yaml). Other builds use what the go command recorded.
var (
	linkedVersion string // with the prefix v
	linkedCommit  string
	linkedDate    string // RFC 3339
)

// buildVersion identifies a binary.
type buildVersion struct {
	// Version is a release (v1.2.0), a commit after a release as a pseudo-version of Go, or "dev" if the
	// build recorded neither. It ends in +dirty if the source had uncommitted changes.
	Version string `json:"version"`
	// Commit is the commit of the source; empty = unknown. Date is its time, RFC 3339.
	Commit   string `json:"commit"`
	Date     string `json:"date"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

// unknownVersion is the version of a binary whose build recorded none.
const unknownVersion = "dev"

// ownVersion returns the version of this binary.
var ownVersion = sync.OnceValue(func() buildVersion {
	info, _ := debug.ReadBuildInfo() // nil for a binary that was built without modules
	v := versionOf(info)
	return buildVersion{
		Version: cmp.Or(linkedVersion, v.Version), Commit: cmp.Or(linkedCommit, v.Commit), Date: cmp.Or(linkedDate, v.Date),
		Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH,
	}
})

// versionOf returns the version, commit and date that the go command recorded in a binary. It records none with
// -buildvcs=false, outside of a repository, in a linked worktree of git, and in go run unless -buildvcs=true is set.
func versionOf(info *debug.BuildInfo) buildVersion {
	v := buildVersion{Version: unknownVersion}
	if info == nil {
		return v
	}
	if info.Main.Version != "" && info.Main.Version != "(devel)" {
		v.Version = info.Main.Version
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			v.Commit = s.Value
		case "vcs.time":
			v.Date = s.Value
		}
	}
	return v
}

// String returns the version in one line.
func (v buildVersion) String() string {
	parts := []string{"commit " + cmp.Or(v.Commit[:min(len(v.Commit), 12)], "unknown")}
	if v.Date != "" {
		parts = append(parts, v.Date)
	}
	return fmt.Sprintf("%s (%s)", v.Version, strings.Join(append(parts, v.Go, v.Platform), ", "))
}

func newVersionCmd() *cobra.Command {
	var output outputFlags
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Long: `Print the version of this binary, the commit of its source and the commit's date.

go build and go install record the commit; go run does so with -buildvcs=true. The go
command does not record it in linked worktrees of git, nor outside of a repository.`,
		Example: `  skyserve version
  skyserve version -o json
  go run -buildvcs=true ./cmd/skyserve version`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			format, err := output.parse()
			if err != nil {
				return err
			}
			if format.isDocument() {
				return format.writeDocument(cmd.OutOrStdout(), ownVersion())
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "skyserve version %s\n", ownVersion()) // as --version prints it
			return err
		},
	}
	output.registerDocument(cmd)
	return cmd
}
