"""What `halo.lstm`, `halo.gru` and `halo.rnn` share: activations, type rule, reference, expansion, loop nest."""
