package main

import (
	"fmt"
	"os"
	"path/filepath"
)

// readServiceFile reads the service file that a command names.
func readServiceFile(file string) ([]byte, error) {
	text, err := os.ReadFile(file)
	if err == nil {
		return text, nil
	}
	hint := "'skyserve init' prints a starter service.yaml"
	if info, missing := os.Stat(file); missing == nil && info.IsDir() {
		err, hint = fmt.Errorf("%s is a directory", file), "pass the path of a file in it, such as "+filepath.Join(file, "service.yaml")
	} else if file != "" {
		if svc, missing := findService(file); missing == nil {
			hint = fmt.Sprintf("%s is a service, not a file; its file is %s", file, svc.SpecFile())
		}
	}
	return nil, usage(fmt.Errorf("reading the service file: %w", err), hint)
}
