package identity

import (
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
)

// Role is the role of the holder of a certificate.
type Role string

// The roles.
const (
	// Operator is a person, with all permissions.
	Operator Role = "operator"
	// Controller reconciles the service. It may use the admin API of balancers and deliver
	// configuration to machines.
	Controller Role = "controller"
	// Balancer may send requests to replicas and other balancers.
	Balancer Role = "balancer"
	// Replica serves balancers. It sends no requests itself.
	Replica Role = "replica"
	// issuer is a delegated authority. It is never a party of a connection.
	issuer Role = "issuer"
)

// Roles lists the roles of parties.
func Roles() []Role { return []Role{Operator, Controller, Balancer, Replica} }

// scheme is the URI scheme of names in certificates.
const scheme = "skyserve"

// Name is the identity in a certificate. It is a URI whose host is role and service,
// skyserve://replica.chat/us-0, so that name constraints can limit what a delegated
// authority signs.
type Name struct {
	Service string
	Role    Role
	// ID is unique within a role: us-0, lb-us-0, ann@laptop.
	ID string
}

// String returns the name's URI.
func (n Name) String() string { return n.uri().String() }

func (n Name) uri() *url.URL { return &url.URL{Scheme: scheme, Host: n.domain(), Path: "/" + n.ID} }

// domain returns the URI host, which name constraints apply to.
func (n Name) domain() string { return string(n.Role) + "." + n.Service }

var (
	idForm      = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._@-]*$`)
	serviceForm = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?$`)
)

// maxID and maxService are the maximum lengths. They are not in the expressions, whose compilation would take
// half a millisecond of every command.
const (
	maxID      = 128
	maxService = 64
)

// isServiceName reports whether name is valid for a service.
func isServiceName(name string) bool { return len(name) <= maxService && serviceForm.MatchString(name) }

// Check validates a name.
func (n Name) Check() error {
	switch {
	case !slices.Contains(Roles(), n.Role) && n.Role != issuer:
		return fmt.Errorf("invalid name %q: role must be one of %v, got %q", n.ID, Roles(), n.Role)
	case !isServiceName(n.Service):
		return fmt.Errorf("invalid name %q: service must be lower-case letters, digits and dashes, got %q", n.ID, n.Service)
	case len(n.ID) > maxID || !idForm.MatchString(n.ID):
		return fmt.Errorf("invalid name of a %s: id must be at most 128 letters, digits and . _ @ -, got %q", n.Role, n.ID)
	}
	return nil
}

// ParseName parses the output of String.
func ParseName(text string) (Name, error) {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != scheme || u.RawQuery != "" || u.Fragment != "" || u.User != nil {
		return Name{}, fmt.Errorf("parsing the name %q: must be %s://ROLE.SERVICE/ID", text, scheme)
	}
	role, service, _ := strings.Cut(u.Host, ".")
	n := Name{Service: service, Role: Role(role), ID: strings.TrimPrefix(u.Path, "/")}
	if err := n.Check(); err != nil {
		return Name{}, fmt.Errorf("parsing the name %q: %w", text, err)
	}
	return n, nil
}

// errUnnamed means that a certificate has no name in this format.
var errUnnamed = errors.New("the certificate must contain the name of one party of a service")

// NameOf returns the name in a certificate. It does not verify the signature.
func NameOf(c *x509.Certificate) (Name, error) {
	if len(c.URIs) != 1 {
		return Name{}, errUnnamed
	}
	n, err := ParseName(c.URIs[0].String())
	if err != nil {
		return Name{}, fmt.Errorf("%w: %w", errUnnamed, err)
	}
	return n, nil
}
