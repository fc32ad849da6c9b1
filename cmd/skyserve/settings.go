package main

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/spf13/cobra"

	"skyserve/internal/service"
	"skyserve/tui"
)

// Environment variables of the configuration file.
const (
	envConfig        = "SKYSERVE_CONFIG" // its path
	envXDGConfigHome = "XDG_CONFIG_HOME"
)

// setting is a key of the configuration file.
type setting struct {
	key     string
	env     string // overrides the file
	command string // the only command that it applies to; empty = all
	flag    string // overrides both; empty = --service, or the NAME of a command
	meaning string
	check   func(value string) error
}

// settings are all keys, sorted.
var settings = []setting{
	{"gcp_project", "GOOGLE_CLOUD_PROJECT", "", "gcp-project", "Google Cloud project", nil},
	{"no_color", "NO_COLOR", "", "no-color", "disable colour", checkBool},
	{"service", "SKYSERVE_SERVICE", "", "", "service of commands without a name", nil},
	{"top.ascii", "SKYSERVE_TOP_ASCII", "skyserve top", "ascii", "draw the dashboard with ASCII characters only", checkBool},
	{"top.interval", "SKYSERVE_TOP_INTERVAL", "skyserve top", "interval", "time between two snapshots of the dashboard", checkInterval},
	{"top.theme", "SKYSERVE_TOP_THEME", "skyserve top", "theme", "colour theme of the dashboard", checkTheme},
}

func checkBool(value string) error {
	if _, err := strconv.ParseBool(value); err != nil {
		return fmt.Errorf("must be true or false, got %q", value)
	}
	return nil
}

func checkInterval(value string) error {
	if d, err := time.ParseDuration(value); err != nil || d < tui.MinInterval {
		return fmt.Errorf("must be a duration of at least %s such as 2s, got %q", tui.MinInterval, value)
	}
	return nil
}

func checkTheme(value string) error {
	_, err := tui.NewTheme(value, false)
	return err
}

// configFile returns the path of the configuration file: $SKYSERVE_CONFIG, else skyserve/config.yaml in the XDG
// configuration directory.
func configFile() (string, error) {
	if path := os.Getenv(envConfig); path != "" {
		return path, nil
	}
	dir := os.Getenv(envXDGConfigHome)
	if dir == "" {
		user, err := os.UserHomeDir()
		if err != nil {
			return "", fmt.Errorf("finding the configuration file: %w; set %s", err, envConfig)
		}
		dir = filepath.Join(user, ".config")
	}
	return filepath.Join(dir, "skyserve", "config.yaml"), nil
}

// readConfig reads the values of the configuration file by key; none if there is no file, unless SKYSERVE_CONFIG
// names it.
func readConfig() (values map[string]string, err error) {
	path, err := configFile()
	if err != nil {
		return nil, nil //nolint:nilerr // without a home directory there is no file, and no command needs one
	}
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) && os.Getenv(envConfig) == "" {
		return nil, nil
	}
	if err != nil {
		return nil, usage(fmt.Errorf("reading the configuration file: %w", err), "correct "+envConfig+", or create the file")
	}
	values, err = parseConfig(text)
	if err != nil {
		return nil, usage(fmt.Errorf("reading %s: %w", path, err), "the keys are "+strings.Join(settingKeys(), ", "))
	}
	return values, nil
}

// settingKeys returns the keys of the settings, sorted.
func settingKeys() []string {
	keys := make([]string, len(settings))
	for i, s := range settings {
		keys[i] = s.key
	}
	return keys
}

// parseConfig parses a configuration file and checks its keys and values.
func parseConfig(text []byte) (map[string]string, error) {
	var content map[string]any
	if err := yaml.Unmarshal(text, &content); err != nil {
		return nil, err
	}
	values := map[string]string{}
	if err := flatten("", content, values); err != nil {
		return nil, err
	}
	keys := settingKeys()
	for _, key := range sortedKeys(values) {
		at := slices.Index(keys, key)
		if at < 0 {
			err := fmt.Errorf("%s: unknown key", key)
			if similar := service.Nearest(key, keys); similar != "" {
				err = fmt.Errorf("%w; did you mean %s?", err, similar)
			}
			return nil, err
		}
		if check := settings[at].check; check != nil {
			if err := check(values[key]); err != nil {
				return nil, fmt.Errorf("%s: %w", key, err)
			}
		}
	}
	return values, nil
}

// flatten adds the values of a mapping by their dotted keys.
func flatten(prefix string, content map[string]any, values map[string]string) error {
	for key, v := range content {
		key = prefix + key
		switch v := v.(type) {
		case map[string]any:
			if err := flatten(key+".", v, values); err != nil {
				return err
			}
		case nil, []any:
			return fmt.Errorf("%s: must be a value", key)
		default:
			values[key] = fmt.Sprint(v)
		}
	}
	return nil
}

// sortedKeys returns the keys of a map, sorted.
func sortedKeys(values map[string]string) []string {
	keys := make([]string, 0, len(values))
	for key := range values {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}

// sourceFile is the source of a setting in the configuration file.
const sourceFile = "file"

// effective returns the value of a setting without its flag, and where it comes from; empty = not set.
func (s setting) effective(file map[string]string) (value, source string) {
	if value = os.Getenv(s.env); value != "" {
		if s.env == "NO_COLOR" { // any value counts
			value = "true"
		}
		return value, s.env
	}
	if value, set := file[s.key]; set {
		return value, sourceFile
	}
	return "", ""
}

// applySettings sets the flags of a command that the command line does not set: from the environment, else from
// the configuration file.
func applySettings(cmd *cobra.Command) error {
	file, err := readConfig()
	if err != nil {
		return err
	}
	for _, s := range settings {
		f := cmd.Flags().Lookup(s.flag)
		if s.flag == "" || f == nil || f.Changed || s.command != "" && s.command != cmd.CommandPath() {
			continue
		}
		value, source := s.effective(file)
		if source == "" {
			continue
		}
		err := error(nil)
		if s.check != nil {
			err = s.check(value)
		}
		if err = cmp.Or(err, cmd.Flags().Set(s.flag, value)); err != nil {
			return usage(fmt.Errorf("%s: %w", source, err), "unset the variable, or correct it")
		}
	}
	return nil
}

// defaultService returns the service of commands without a name, and what sets it, such as SKYSERVE_SERVICE; both are
// empty if none is set.
func defaultService() (name, source string, err error) {
	file, err := readConfig()
	if err != nil {
		return "", "", err
	}
	i := slices.IndexFunc(settings, func(s setting) bool { return s.key == "service" })
	name, source = settings[i].effective(file)
	if name = strings.TrimSpace(name); name == "" {
		return "", "", nil
	}
	if source == sourceFile {
		path, err := configFile()
		if err != nil {
			return "", "", err
		}
		source = "service in " + path
	}
	return name, source, nil
}
