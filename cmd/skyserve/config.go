package main

import (
	"cmp"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"skyserve/internal/printable"
)

// configOptions are the flags of `skyserve config`.
type configOptions struct {
	output    string
	noHeaders bool
}

func newConfigCmd() *cobra.Command {
	var o configOptions
	cmd := &cobra.Command{
		Use:        "config",
		SuggestFor: []string{"settings", "preferences"},
		Short:      "Show the settings of the configuration file",
		Long: `Show every setting with its value and where the value comes from. A flag overrides
the environment, which overrides the configuration file: $SKYSERVE_CONFIG, else
skyserve/config.yaml in $XDG_CONFIG_HOME (~/.config). The file is optional.`,
		Example: `  skyserve config
  skyserve config -o yaml`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.show(cmd.OutOrStdout()) },
	}
	cmd.Flags().StringVarP(&o.output, "output", "o", "text", "output format: "+listFormats)
	cmd.Flags().BoolVar(&o.noHeaders, "no-headers", false, "print only the rows of the table")
	completeFlag(cmd, "output", completeOutput)
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
	format, err := parseOutput(o.output)
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
	list := []shownSetting{}
	for _, s := range settings {
		value, source := s.effective(file)
		flag := "NAME"
		if s.flag != "" {
			flag = "--" + s.flag
		}
		list = append(list, shownSetting{s.key, value, source, s.env, flag, s.meaning})
	}
	if format.isDocument() {
		return format.writeDocument(out, map[string]any{"file": path, "settings": list})
	}
	t := printable.NewTable(out)
	if format.kind != outputName && !o.noHeaders {
		t.Rowf("KEY\tVALUE\tSOURCE\tFLAG\tENVIRONMENT\tMEANING")
	}
	for _, s := range list {
		if format.kind == outputName {
			t.Rowf("%s", s.Key)
			continue
		}
		source := s.Source
		if source == "file" {
			source = path
		}
		t.Rowf("%s\t%s\t%s\t%s\t%s\t%s", s.Key, cmp.Or(s.Value, "-"), cmp.Or(source, "-"), s.Flag, s.Environment, s.Meaning)
	}
	if err := t.Flush(); err != nil {
		return fmt.Errorf("printing the settings: %w", err)
	}
	return nil
}
