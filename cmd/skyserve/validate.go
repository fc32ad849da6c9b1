package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"skyserve/internal/service"
)

type validateOptions struct {
	output string
	files  []string
}

// validatedFile is what validate says of one file with -o json.
type validatedFile struct {
	File   string         `json:"file"`
	OK     bool           `json:"ok"`
	Errors service.Errors `json:"errors"`
	// Warnings are what may be wrong with a file that is well formed.
	Warnings []string `json:"warnings"`
}

func newValidateCmd() *cobra.Command {
	var o validateOptions
	cmd := &cobra.Command{
		Use:   "validate FILE...",
		Short: "Check service files",
		Long: `Checks service files and reports everything that is wrong with them at once,
with file, line and column. The file - is standard input. What may be wrong although a
file is well formed, such as a region newer than this program, is a warning.`,
		Example: `  skyserve validate service.yaml
  skyserve init | skyserve validate -`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usage(errors.New("validate needs a file"), "skyserve validate service.yaml")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			o.files = args
			return runValidate(cmd, o)
		},
	}
	cmd.Flags().StringVarP(&o.output, "output", "o", "text", "text or json")
	return cmd
}

func runValidate(cmd *cobra.Command, o validateOptions) error {
	if o.output != "text" && o.output != "json" {
		return usage(fmt.Errorf("-o %s: want text or json", o.output), "")
	}
	results := make([]validatedFile, 0, len(o.files))
	problems := 0
	for _, name := range o.files {
		r := validateFile(cmd.InOrStdin(), name)
		problems += len(r.Errors)
		results = append(results, r)
	}
	if err := printValidated(cmd, o.output, results); err != nil {
		return err
	}
	if problems == 0 {
		return nil
	}
	return usage(errors.New(""), "'skyserve schema' prints a schema that editors complete and check from")
}

// validateFile checks one file; a file that cannot be read has one error.
func validateFile(stdin io.Reader, name string) validatedFile {
	data, err := readValidated(stdin, &name)
	warnings := []string{}
	if err == nil {
		var spec *service.Spec
		if spec, err = service.Parse(name, data); err == nil {
			warnings = append(warnings, spec.Warnings()...)
		}
	}
	var all service.Errors
	if err != nil && !errors.As(err, &all) {
		all = service.Errors{{File: name, Problem: err.Error()}}
	}
	return validatedFile{File: name, OK: err == nil, Errors: append(service.Errors{}, all...), Warnings: warnings}
}

// readValidated reads a file, or standard input for -, which it renames. It reads
// no more than tells that a file is too large.
func readValidated(stdin io.Reader, name *string) ([]byte, error) {
	in := stdin
	if *name == "-" {
		*name = "stdin"
	} else {
		f, err := os.Open(*name)
		if err != nil {
			return nil, fmt.Errorf("cannot be read: %w", pathCause(err))
		}
		defer f.Close()
		in = f
	}
	data, err := io.ReadAll(io.LimitReader(in, service.MaxBytes+1))
	if err != nil {
		return nil, fmt.Errorf("cannot be read: %w", pathCause(err))
	}
	return data, nil
}

// pathCause is what is wrong with a file without its name, which stands before it.
func pathCause(err error) error {
	var pe *os.PathError
	if errors.As(err, &pe) {
		return pe.Err
	}
	return err
}

// printValidated prints results: as one document, or ok lines to stdout and
// errors to stderr.
func printValidated(cmd *cobra.Command, output string, results []validatedFile) error {
	if output == "json" {
		enc := json.NewEncoder(cmd.OutOrStdout())
		enc.SetIndent("", "  ")
		enc.SetEscapeHTML(false)
		return enc.Encode(map[string][]validatedFile{"files": results})
	}
	for _, r := range results {
		var err error
		if r.OK {
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: ok\n", r.File)
		} else {
			_, err = fmt.Fprintln(cmd.ErrOrStderr(), r.Errors)
		}
		for _, warning := range r.Warnings {
			if err == nil {
				_, err = fmt.Fprintf(cmd.ErrOrStderr(), "%s: warning: %s\n", r.File, warning)
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}
