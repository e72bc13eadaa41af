package cli

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/millrace/millrace/admin"
)

func userCommand(t *terminal) *cobra.Command {
	return group("user", "add, list and delete users, and say how they log in",
		examples(
			"millrace user add billing", "asks for the password",
			"millrace user add ops --tags monitoring < ops.txt", "in scripts",
			"millrace permission set billing --read '^orders$'", "what billing may do",
			"millrace user passwd guest", "another password",
			"millrace user import definitions.json", "RabbitMQ's users, permissions and virtual hosts"),
		userAdd(t), userList(t), userPasswd(t), userTags(t), userDelete(t), userImport(t))
}

// newSecret is where the password of a user comes from: never a flag's value.
type newSecret struct {
	file, hashFile, algorithm string
	none                      bool
}

func (n *newSecret) addFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&n.file, "new-password-file", "", "file that holds the new password; - is the standard input (default: MILLRACE_NEW_PASSWORD, else asked for, or read from a pipe)")
	f.StringVar(&n.hashFile, "hash-file", "", "file that holds RabbitMQ's hash of the password, in base64")
	f.StringVar(&n.algorithm, "hash-algorithm", "rabbit_password_hashing_sha256", "how that was made: this or rabbit_password_hashing_sha512")
	f.BoolVar(&n.none, "no-password", false, "let the user in by a certificate alone")
}

func (n *newSecret) read(t *terminal) (admin.Secret, error) {
	given := 0
	for _, is := range []bool{n.file != "", n.hashFile != "", n.none} {
		if is {
			given++
		}
	}
	switch {
	case given > 1:
		return admin.Secret{}, usage("--new-password-file, --hash-file and --no-password exclude each other")
	case n.none:
		return admin.Secret{}, nil
	case n.hashFile != "":
		text, err := os.ReadFile(n.hashFile)
		if err != nil {
			return admin.Secret{}, fail(exitUsage, "read the hash: %w", err)
		}
		return admin.Secret{Hash: strings.TrimSpace(string(text)), Algorithm: n.algorithm}, nil
	}
	password, err := n.password(t)
	if err == nil && password == "" {
		err = usage("the new password is empty").suggest("--no-password    let the user in by a certificate alone")
	}
	return admin.Secret{Password: password}, err
}

func (n *newSecret) password(t *terminal) (string, error) {
	switch inEnv := t.getenv("MILLRACE_NEW_PASSWORD"); {
	case n.file != "" && n.file != "-":
		text, err := os.ReadFile(n.file)
		if err != nil {
			return "", fail(exitUsage, "read the new password: %w", err)
		}
		return strings.TrimRight(string(text), "\r\n"), nil
	case n.file == "" && inEnv != "":
		return inEnv, nil
	case n.file == "" && t.inTTY:
		return askTwice(t)
	}
	line, err := bufio.NewReader(t.in).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return "", fail(exitFailed, "read the new password: %w", err)
	}
	return strings.TrimRight(line, "\r\n"), nil
}

// askTwice has a person type a password that is not shown.
func askTwice(t *terminal) (string, error) {
	var typed [2][]byte
	for i, question := range []string{"New password: ", "Once more: "} {
		fmt.Fprint(t.err, question)
		text, err := term.ReadPassword(int(os.Stdin.Fd()))
		fmt.Fprintln(t.err)
		if err != nil {
			return "", fail(exitFailed, "read the new password: %w", err)
		}
		typed[i] = text
	}
	if string(typed[0]) != string(typed[1]) {
		return "", fail(exitFailed, "the two are not the same: nothing was done")
	}
	return string(typed[0]), nil
}

func userPath(name string) string { return "/api/v1/users/" + url.PathEscape(name) }

func userAdd(t *terminal) *cobra.Command {
	var l look
	var secret newSecret
	var tags []string
	cmd := &cobra.Command{
		Use: "add NAME", Short: "make a user", Args: arguments(1, 1),
		Long: `Makes a user. It may log in, and do nothing until a permission says more. Tags are
about the HTTP API: an administrator may do everything, monitoring and management may
look.`,
		Example: examples("millrace user add billing", "", "millrace user add ops --tags monitoring --new-password-file ops.txt", "in scripts",
			"millrace user add billing --no-password", "by a certificate alone (millrace cert client billing)"),
	}
	l.addFlags(cmd, t)
	secret.addFlags(cmd)
	cmd.Flags().StringSliceVar(&tags, "tags", nil, "any of "+strings.Join(admin.Tags, ", "))
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		s, err := secret.read(t)
		if err != nil {
			return err
		}
		if err := l.call(cmd.Context(), "POST", "/api/v1/users", admin.NewUser{Name: args[0], Tags: tags, Secret: s}, nil); err != nil {
			return err
		}
		return l.done(t, map[string]string{"created": args[0]}, "created user %s\n", args[0])
	}
	return cmd
}

// done says that a change is done.
func (l *look) done(t *terminal, value any, format string, args ...any) error {
	return printOne(t.out, l.format, value, func(w io.Writer) error {
		_, err := fmt.Fprintf(w, format, args...)
		return err
	})
}

func userList(t *terminal) *cobra.Command {
	var l look
	cmd := &cobra.Command{
		Use: "list", Short: "list users", Args: arguments(0, 0),
		Example: examples("millrace user list", "", "millrace user list -o json", "for scripts"),
	}
	l.addFlags(cmd, t)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		var list []admin.User
		if err := l.call(cmd.Context(), "GET", "/api/v1/users", nil, &list); err != nil {
			return err
		}
		out := listing{columns: []column{left("NAME"), left("TAGS"), left("LOGIN"), left("VHOSTS")}}
		for _, u := range list {
			login := "password"
			if !u.Password {
				login = "certificate"
			}
			out.add(u, u.Name, or(strings.Join(u.Tags, ","), "-"), login, or(strings.Join(u.VHosts, ","), "-"))
		}
		return out.print(t.out, l.format)
	}
	return cmd
}

func userPasswd(t *terminal) *cobra.Command {
	var l look
	var secret newSecret
	cmd := &cobra.Command{
		Use: "passwd NAME", Short: "give a user another password", Args: arguments(1, 1),
		Long: `Gives a user another password. Connections that are open stay; the old password lets
nobody in any more.`,
		Example: examples("millrace user passwd billing", "asks for it"),
	}
	l.addFlags(cmd, t)
	secret.addFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		s, err := secret.read(t)
		if err != nil {
			return err
		}
		if err := l.call(cmd.Context(), "PUT", userPath(args[0])+"/password", s, nil); err != nil {
			return err
		}
		return l.done(t, map[string]string{"changed": args[0]}, "%s has another password\n", args[0])
	}
	return cmd
}

func userTags(t *terminal) *cobra.Command {
	var l look
	cmd := &cobra.Command{
		Use: "tags NAME [TAG…]", Short: "say what a user may do on the HTTP API", Args: arguments(1, 100),
		Long:    "Gives a user these tags and no others: " + strings.Join(admin.Tags, ", ") + ".\nWithout a tag it has none. The last administrator stays one.",
		Example: examples("millrace user tags ops monitoring", "may look", "millrace user tags ops", "may not even look"),
	}
	l.addFlags(cmd, t)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		tags := args[1:]
		if err := l.call(cmd.Context(), "PUT", userPath(args[0])+"/tags", admin.UserTags{Tags: tags}, nil); err != nil {
			return err
		}
		return l.done(t, admin.User{Name: args[0], Tags: tags}, "tags of %s: %s\n", args[0], or(strings.Join(tags, ", "), "none"))
	}
	return cmd
}

func userDelete(t *terminal) *cobra.Command {
	var l look
	var yes bool
	cmd := &cobra.Command{
		Use: "delete NAME", Short: "delete a user and its permissions", Args: arguments(1, 1),
		Long:    "Deletes a user with its permissions. Its connections are closed.",
		Example: examples("millrace user delete billing", "asks for the name first", "millrace user delete billing --yes", "in scripts"),
	}
	l.addFlags(cmd, t)
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if !yes {
			if err := confirm(t, "This deletes user "+args[0]+" and closes its connections.", args[0]); err != nil {
				return err
			}
		}
		if err := l.call(cmd.Context(), "DELETE", userPath(args[0]), nil, nil); err != nil {
			return err
		}
		return l.done(t, map[string]string{"deleted": args[0]}, "deleted user %s\n", args[0])
	}
	return cmd
}

// definitions are the part of RabbitMQ's export that says who may do what.
type definitions struct {
	VHosts []struct {
		Name string `json:"name"`
	} `json:"vhosts"`
	Users []struct {
		Name      string          `json:"name"`
		Hash      string          `json:"password_hash"`
		Algorithm string          `json:"hashing_algorithm"`
		Tags      json.RawMessage `json:"tags"` // a list, or words with commas between
	} `json:"users"`
	Permissions []admin.Permission `json:"permissions"`
}

// imported counts what an import did.
type imported struct {
	VHosts      int `json:"vhosts"`
	Users       int `json:"users"`
	Permissions int `json:"permissions"`
	Present     int `json:"present"` // virtual hosts and users that were there, and stay as they are
}

func userImport(t *terminal) *cobra.Command {
	var l look
	cmd := &cobra.Command{
		Use: "import FILE", Short: "take over RabbitMQ's users, permissions and virtual hosts", Args: arguments(1, 1),
		Long: `Takes users with the hashes of their passwords (salted SHA-256 and SHA-512), their
permissions and virtual hosts from RabbitMQ's exported definitions. What is there
already stays as it is, but for permissions, which are set; so an import may be
repeated. Queues, exchanges and policies are not looked at.`,
		Example: examples("rabbitmqctl export_definitions definitions.json", "on the other side",
			"millrace user import definitions.json", ""),
	}
	l.addFlags(cmd, t)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		text, err := os.ReadFile(args[0])
		if err != nil {
			return err
		}
		var d definitions
		if err := json.Unmarshal(text, &d); err != nil {
			return usage("%s is no export of definitions: %w", args[0], err)
		}
		done, err := l.take(cmd, t, &d)
		if err != nil {
			return err
		}
		return l.done(t, done, "made %s and %s, set %s; %d were there already\n",
			some(done.VHosts, "virtual host"), some(done.Users, "user"), some(done.Permissions, "permission"), done.Present)
	}
	return cmd
}

// take carries an import out, in the order in which things need each other.
func (l *look) take(cmd *cobra.Command, t *terminal, d *definitions) (done imported, err error) {
	make := func(count *int, path string, body any) error {
		err := l.call(cmd.Context(), "POST", path, body, nil)
		var p *problem
		switch {
		case err == nil:
			*count++
		case errors.As(err, &p) && p.code == exitConflict:
			done.Present++
		default:
			return err
		}
		return nil
	}
	for _, v := range d.VHosts {
		if err := make(&done.VHosts, "/api/v1/vhosts", admin.NewVHost{Name: v.Name}); err != nil {
			return done, err
		}
	}
	for _, u := range d.Users {
		user := admin.NewUser{Name: u.Name, Tags: []string{}, Secret: admin.Secret{Hash: u.Hash, Algorithm: u.Algorithm}}
		for _, tag := range tagsIn(u.Tags) {
			if slices.Contains(admin.Tags, tag) {
				user.Tags = append(user.Tags, tag)
			} else {
				fmt.Fprintf(t.err, "user %s: tag %q means nothing here and is left out\n", u.Name, tag)
			}
		}
		if err := make(&done.Users, "/api/v1/users", user); err != nil {
			return done, err
		}
	}
	for _, p := range d.Permissions {
		if err := l.call(cmd.Context(), http.MethodPut, permissionPath(p.VHost, p.User), admin.Patterns{Configure: p.Configure, Write: p.Write, Read: p.Read}, nil); err != nil {
			return done, err
		}
		done.Permissions++
	}
	return done, nil
}

func tagsIn(text json.RawMessage) (tags []string) {
	if json.Unmarshal(text, &tags) == nil {
		return tags
	}
	var words string
	if json.Unmarshal(text, &words) == nil {
		for _, word := range strings.Split(words, ",") {
			if word = strings.TrimSpace(word); word != "" {
				tags = append(tags, word)
			}
		}
	}
	return tags
}
