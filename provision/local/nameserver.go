package local

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/goccy/go-yaml"

	"skyserve/internal/atomicfile"
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

// StoreName records that a name in a hosted zone is about to resolve to the service, so that it can be
// removed even if service.yaml is changed or deleted. The DNS records are not stored: they are in the hosted
// zone.
func (s Service) StoreName(n provision.PublicName) error {
	n.Records = nil
	data, err := json.Marshal(n)
	if err != nil {
		return fmt.Errorf("storing the DNS name %s: %w", n.Name, err)
	}
	return writeFile(s.configFile(fileName), data)
}

// StoredName returns the name that was last stored; false when there is none.
func (s Service) StoredName() (n provision.PublicName, has bool, err error) {
	data, err := os.ReadFile(s.configFile(fileName))
	if errors.Is(err, fs.ErrNotExist) {
		return provision.PublicName{}, false, nil
	}
	if err == nil {
		err = atomicfile.DecodeJSON(s.configFile(fileName), data, &n)
	}
	if err != nil {
		return provision.PublicName{}, false, fmt.Errorf("reading the DNS name of %s: %w", s.name, err)
	}
	return n, true, nil
}

// RemoveName records that the stored name does not resolve to the service any more.
func (s Service) RemoveName() error {
	if err := os.Remove(s.configFile(fileName)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("deleting the DNS name of %s: %w", s.name, err)
	}
	return nil
}
