package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"skyserve/internal/controller/deploy"
	"skyserve/internal/service"
)

type validateOptions struct {
	output outputFlags
	files  []string
}

// validatedFile is the result for one file in the output of -o json.
type validatedFile struct {
	File   string         `json:"file"`
	OK     bool           `json:"ok"`
	Errors service.Errors `json:"errors"`
	// Warnings are possible problems of a valid file.
	Warnings []string `json:"warnings"`
}

func newValidateCmd() *cobra.Command {
	var o validateOptions
	cmd := &cobra.Command{
		Use:   "validate FILE...",
		Short: "Check service files",
		Long: `Check service files and report all errors at once, with file, line and column. The
file - is standard input. Possible problems of a valid file, such as a variable that is
not set here or a region that this version of skyserve does not list, are warnings.`,
		Example: `  skyserve validate service.yaml
  skyserve init | skyserve validate -`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usage(errors.New("requires at least 1 argument: FILE"), "for example: skyserve validate service.yaml")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			o.files = args
			return runValidate(cmd, o)
		},
	}
	o.output.registerDocument(cmd)
	return cmd
}

func runValidate(cmd *cobra.Command, o validateOptions) error {
	format, err := o.output.parse()
	if err != nil {
		return err
	}
	results := make([]validatedFile, 0, len(o.files))
	problems, wholeFile := 0, false
	for _, name := range o.files {
		r := validateFile(cmd.InOrStdin(), name)
		problems += len(r.Errors)
		wholeFile = wholeFile || slices.ContainsFunc(r.Errors, func(e service.Error) bool { return e.Path == "" && e.Suggestion == "" })
		results = append(results, r)
	}
	if err := printValidated(cmd, format, results); err != nil {
		return err
	}
	if problems == 0 {
		return nil
	}
	hint := ""
	if wholeFile { // an error of one key states its rule
		hint = "'skyserve init' prints a starter service.yaml; 'skyserve schema' prints a JSON schema for completion and validation in editors"
	}
	return usage(errors.New(""), hint)
}

// validateFile checks one file. A file that cannot be read yields one error.
func validateFile(stdin io.Reader, name string) validatedFile {
	data, err := readValidated(stdin, &name)
	warnings := []string{}
	if err == nil {
		var spec *service.Spec
		if spec, err = parseService(name, data); err == nil {
			warnings = append(warnings, warningsOf(spec)...)
			base := filepath.Dir(name)
			if whole, err := filepath.Abs(base); err == nil {
				base = whole // else the warning about keys.txt does not say where it should be
			}
			warnings = append(warnings, unusableSecrets(spec, base)...)
			warnings = append(warnings, readableSecrets(spec, base)...)
		}
	}
	var all service.Errors
	if err != nil && !errors.As(err, &all) {
		all = service.Errors{{File: name, Problem: err.Error()}}
	}
	return validatedFile{File: name, OK: err == nil, Errors: append(service.Errors{}, all...), Warnings: warnings}
}

// unusableSecrets warns of variables and files with secrets or endpoints that up would reject here, on this computer and in
// this environment. base is the directory of relative paths.
func unusableSecrets(spec *service.Spec, base string) (warnings []string) {
	if err := deploy.CheckSecrets(spec, deploy.SecretsBelow(base)); err != nil { // for machines in clouds
		warnings = strings.Split(err.Error(), "\n")
	}
	for _, s := range localSecrets(spec, base) {
		if err := s.check(); err != nil {
			warnings = append(warnings, fmt.Sprintf("%s: %v", s.key, err))
		}
	}
	for i := range warnings {
		warnings[i] += "; 'skyserve up' here would stop with this error"
	}
	return warnings
}

// readValidated reads a file, or standard input for -, whose name it sets to stdin. It reads at
// most one byte more than the limit, enough to detect a file that is too large.
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

// pathCause returns the cause of a path error without the file's name, which the message has already.
func pathCause(err error) error {
	var pe *os.PathError
	if errors.As(err, &pe) {
		if errors.Is(pe.Err, syscall.EISDIR) {
			return errors.New("it is a directory; pass the path of a file in it, such as " + filepath.Join(pe.Path, "service.yaml"))
		}
		return pe.Err
	}
	return err
}

// printValidated prints the results as one document, or as ok lines to stdout and errors to
// stderr.
func printValidated(cmd *cobra.Command, format outputFormat, results []validatedFile) error {
	if format.isDocument() {
		return format.writeDocument(cmd.OutOrStdout(), map[string][]validatedFile{"files": results})
	}
	for _, r := range results {
		var err error
		if r.OK {
			err = printValid(cmd.OutOrStdout(), r.File)
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
