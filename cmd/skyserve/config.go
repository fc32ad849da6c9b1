package main

import (
	"io"

	"github.com/spf13/cobra"

	"skyserve/internal/printable"
)

// configOptions are the flags of `skyserve config`.
type configOptions struct{ outputFlags }

func newConfigCmd() *cobra.Command {
	var o configOptions
	cmd := &cobra.Command{
		Use:        "config",
		SuggestFor: []string{"settings", "preferences"},
		Short:      "Show the settings of the skyserve command line (config.yaml)",
		Long: `Show every setting of the configuration file with its value and where the value comes
from. A flag overrides the environment, which overrides the file: $SKYSERVE_CONFIG, else
skyserve/config.yaml in $XDG_CONFIG_HOME (~/.config). The file is optional.

The state of services is in the state directory, which the file cannot set: $SKYSERVE_HOME,
else skyserve in $XDG_STATE_HOME (~/.local/state).`,
		Example: `  skyserve config
  skyserve config -o yaml`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.show(cmd.OutOrStdout()) },
	}
	o.registerList(cmd)
	return cmd
}

// shownSetting is a setting in the output of `skyserve config`.
type shownSetting struct {
	Key   string `json:"key"`
	Value string `json:"value"`
	// Source is the environment variable, "file", or empty if the setting is not set.
	Source      string `json:"source"`
	Environment string `json:"environment"`
	Flag        string `json:"flag"`
	Meaning     string `json:"meaning"`
}

// show prints the settings.
func (o *configOptions) show(out io.Writer) error {
	format, err := o.parse()
	if err != nil {
		return err
	}
	file, err := readConfig()
	if err != nil {
		return err
	}
	path, err := configFile()
	if err != nil {
		return err
	}
	shown := []shownSetting{}
	for _, s := range settings {
		value, source := s.effective(file)
		flag := "--service"
		if s.flag != "" {
			flag = "--" + s.flag
		}
		shown = append(shown, shownSetting{s.key, value, source, s.env, flag, s.meaning})
	}
	return format.write(out, map[string]any{"file": path, "settings": shown}, settingsTable(shown, path))
}

// settingsTable returns the table of the settings. path is the configuration file.
func settingsTable(shown []shownSetting, path string) list {
	l := list{titles: []string{"KEY", "VALUE", "SOURCE", "FLAG", "ENVIRONMENT", "MEANING"}, fitting: printable.Fitting{Optional: []string{"ENVIRONMENT", "FLAG"}, Whole: []string{"KEY"}, Readable: map[string]int{"MEANING": 24}}}
	for _, s := range shown {
		source := s.Source
		if source == "file" {
			source = path
		}
		l.rows = append(l.rows, listRow{name: s.Key, cells: []string{s.Key, s.Value, source, s.Flag, s.Environment, s.Meaning}})
	}
	return l
}
