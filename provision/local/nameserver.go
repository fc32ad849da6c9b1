package local

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/goccy/go-yaml"

	"skyserve/internal/service"
	"skyserve/provision"
)

const fileName = "name.json"

// ReadNameServer reads the configuration file of a name server.
func ReadNameServer(path string) (service.NameServerConfig, error) {
	var c service.NameServerConfig
	data, err := os.ReadFile(path)
	if err == nil {
		err = yaml.UnmarshalWithOptions(data, &c, yaml.Strict())
	}
	if err != nil {
		return c, fmt.Errorf("reading the name server's configuration %s: %w", path, err)
	}
	return c, nil
}

// KeepName notes that a name in a hosted zone is about to lead to the service, so
// that it can be removed whatever becomes of service.yaml. Its records are not
// kept: they are in the zone.
func (s Service) KeepName(n provision.Name) error {
	n.Records = nil
	data, err := json.Marshal(n)
	if err != nil {
		return fmt.Errorf("keeping the name %s: %w", n.Name, err)
	}
	return writeFile(s.configFile(fileName), data)
}

// KeptName is the name that was last kept; false when there is none.
func (s Service) KeptName() (n provision.Name, has bool, err error) {
	data, err := os.ReadFile(s.configFile(fileName))
	if errors.Is(err, fs.ErrNotExist) {
		return provision.Name{}, false, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &n)
	}
	if err != nil {
		return provision.Name{}, false, fmt.Errorf("reading the published name of %s in %s: %w", s.name, s.configFile(fileName), err)
	}
	return n, true, nil
}

// ForgetName notes that the kept name leads nowhere any more.
func (s Service) ForgetName() error {
	if err := os.Remove(s.configFile(fileName)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("forgetting the published name of %s: %w", s.name, err)
	}
	return nil
}
