package identity

// A Header is a header of clients' HTTP requests that an upstream gets.
type Header struct {
	Name string // in canonical form
	User bool   // it says who the user is: those with different values have nothing in common
}
